// A gather that no product reads, or one over another axis, stays.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <cp = 2, tp = 4>
// CHECK-NOT: made_by
%x, %u, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[S/cp, D], bf16>, !stg.tensor<[D, F], bf16>)
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%h = dist.all_gather %u dim "S" over [cp] : !stg.tensor<[S/cp, D], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %h, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[S, F], bf16>
"test.op"(%y, %g) : (!stg.tensor<[S, F], bf16>, !stg.tensor<[S, D], bf16>) -> ()

// One device has nothing to wait for.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <tp = 1>
// CHECK-NOT: made_by
%x, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
"test.op"(%y) : (!stg.tensor<[S, F/tp], bf16>) -> ()

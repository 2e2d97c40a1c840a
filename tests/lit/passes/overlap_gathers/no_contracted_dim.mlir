// A product that sums over the gathered dim needs all of it.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <tp = 4>
// CHECK-NOT: made_by
%x, %w = "test.op"() : () -> (!stg.tensor<[S, D/tp], bf16>, !stg.tensor<[D, F], bf16>)
%g = dist.all_gather %x dim "D" over [tp] : !stg.tensor<[S, D/tp], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[S, F], bf16>
"test.op"(%y) : (!stg.tensor<[S, F], bf16>) -> ()

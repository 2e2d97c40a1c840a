// Whoever reads the gathered value itself gets the pieces joined.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <tp = 4>
%x, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>)
// CHECK: %[[OWN:[^ ]*]] = dist.piece %x
// CHECK: %[[WHOLE:[^ ]*]] = dist.join_pieces(%[[OWN]], {{.*}} -> !stg.tensor<[S, D], bf16>
// CHECK: "test.op"(%{{[^,]*}}, %[[WHOLE]])
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
"test.op"(%y, %g) : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, D], bf16>) -> ()

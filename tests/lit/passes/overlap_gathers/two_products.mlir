// All products of a gathered value are made piece by piece, in one ring.
// RUN: stagec-opt %s -p 'overlap-gathers{axis="tp"}' | filecheck %s

dist.mesh <tp = 4>
%x, %v, %w = "test.op"() : () -> (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>, !stg.tensor<[D, F/tp], bf16>)
// CHECK-NOT:  dist.all_gather
// CHECK:      %[[OWN:[^ ]*]] = dist.piece %x
// CHECK-NEXT: dist.send(%[[OWN]])
// CHECK-NEXT: dist.recv
// CHECK-NEXT: stg.contract %[[OWN]], %v
// CHECK-NEXT: stg.contract %[[OWN]], %w
// CHECK:      stg.repeat "tp - 2"
// CHECK-COUNT-2: stg.contract
// CHECK:      stg.yield
// CHECK-COUNT-2: stg.contract
// CHECK-COUNT-2: dist.join_pieces
// CHECK-NOT:  dist.join_pieces
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
%y = stg.contract %g, %v over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
%z = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
"test.op"(%y, %z) : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, F/tp], bf16>) -> ()

// Pieces are views; what is joined is there when the last piece is.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <tp = 2>
stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>, %q : !stg.tensor<[S/tp.piece, D], bf16>) {
  // CHECK: %[[PIECE:[^ ]*]] = sched.view %x
  %p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S/tp.piece, D], bf16>
  // CHECK: sched.view %q
  %w = dist.join_pieces (%p, %q) dim "S" over [tp] : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[S/tp.piece, D], bf16>) -> !stg.tensor<[S, D], bf16>
  stg.output
}

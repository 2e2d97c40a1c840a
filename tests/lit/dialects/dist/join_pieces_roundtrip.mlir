// Pieces, alone and in stacks, become the whole that they were written to.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a, %b = "test.op"() : () -> (!stg.tensor<[S/tp.piece, D], bf16>, !stg.stack<"tp - 1" x !stg.tensor<[S/tp.piece, D], bf16>>)

// CHECK: %w = dist.join_pieces(%a, %b) dim "S" over [tp] : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.stack<"tp - 1" x !stg.tensor<[S/tp.piece, D], bf16>>) -> !stg.tensor<[S, D], bf16>
%w = dist.join_pieces (%a, %b) dim "S" over [tp]
  : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.stack<"tp - 1" x !stg.tensor<[S/tp.piece, D], bf16>>) -> !stg.tensor<[S, D], bf16>

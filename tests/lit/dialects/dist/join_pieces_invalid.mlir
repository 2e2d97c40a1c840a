// All pieces are of one whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.join_pieces`: pieces are one or more, all of one type
%w = dist.join_pieces () dim "S" over [tp] : () -> !stg.tensor<[S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.join_pieces`: pieces are one or more, all of one type
%a, %b = "test.op"() : () -> (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[S/tp.piece, F], bf16>)
%w = dist.join_pieces (%a, %b) dim "S" over [tp] : (!stg.tensor<[S/tp.piece, D], bf16>, !stg.tensor<[S/tp.piece, F], bf16>) -> !stg.tensor<[S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.join_pieces`: `S/tp` is no piece over [tp]
%a = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
%w = dist.join_pieces (%a) dim "S" over [tp] : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.join_pieces`: the pieces make !stg.tensor<[S, D], bf16>
%a = "test.op"() : () -> !stg.tensor<[S/tp.piece, D], bf16>
%w = dist.join_pieces (%a) dim "S" over [tp] : (!stg.tensor<[S/tp.piece, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>

// What is broadcast keeps its dims, how they are split, and what it is partial over.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.broadcast`: `B/dp` is not in <[B, S], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp], bf16>
%y = stg.broadcast %x : (!stg.tensor<[B/dp], bf16>) -> !stg.tensor<[B, S], bf16>

// -----

// CHECK: error[E0709]: `stg.broadcast`: a partial tensor stays partial
%x = "test.op"() : () -> !stg.tensor<[B], bf16, partial [tp]>
%y = stg.broadcast %x : (!stg.tensor<[B], bf16, partial [tp]>) -> !stg.tensor<[B, S], bf16>

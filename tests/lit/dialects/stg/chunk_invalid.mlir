// A tensor has the dim that it is cut along, and chunks have the rest of its type.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.chunk`: !stg.tensor<[B, D], bf16> has no dim `S`
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%c = stg.chunk %x dim "S" : !stg.tensor<[B, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B, D], bf16>>

// -----

// CHECK: error[E0709]: `stg.chunk`: the chunks of !stg.tensor<[B, D], bf16> are !stg.stack<"loss.chunk" x !stg.tensor<[B/loss.chunk, D], bf16>>, not
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%c = stg.chunk %x dim "B" : !stg.tensor<[B, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B, D], bf16>>

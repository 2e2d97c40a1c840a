// The rows of a split table are partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.embedding`: the result is <[B, D], bf16>, but its operands make it <[B, D], bf16, partial [tp]>
%t, %w = "test.op"() : () -> (!stg.tensor<[B], i32>, !stg.tensor<[V/tp, D], bf16>)
%x = stg.embedding %t, %w : (!stg.tensor<[B], i32>, !stg.tensor<[V/tp, D], bf16>) -> !stg.tensor<[B, D], bf16>

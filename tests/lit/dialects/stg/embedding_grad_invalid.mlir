// The rows of a table's gradient have the dims of what was looked up.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.embedding_grad`: the table's rows are those of dy
%t, %dy = "test.op"() : () -> (!stg.tensor<[B], i32>, !stg.tensor<[B, D], bf16>)
%dw = stg.embedding_grad %t, %dy : (!stg.tensor<[B], i32>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[V, F], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_grad`: the result is <[V, D], bf16>, but its operands make it <[V, D], bf16, partial [dp]>
%t, %dy = "test.op"() : () -> (!stg.tensor<[B/dp], i32>, !stg.tensor<[B/dp, D], bf16>)
%dw = stg.embedding_grad %t, %dy : (!stg.tensor<[B/dp], i32>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[V, D], bf16>

// The gradient of a table has its rows, and is a sum over samples.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.embedding_bag_grad`: rows by numbers <[B, J], i32> are [B, F], not <[B, E], bf16>
%i, %dy = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[B, E], bf16>)
%dw = stg.embedding_bag_grad %i, %dy over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[B, E], bf16>) -> !stg.tensor<[R, F], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_bag_grad`: the result is <[R, E], bf16>, but its operands make it <[R, E], bf16, partial [dp]>
%i, %dy = "test.op"() : () -> (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E], bf16>)
%dw = stg.embedding_bag_grad %i, %dy over "J" : (!stg.tensor<[B/dp, J], i32>, !stg.tensor<[B/dp, E], bf16>) -> !stg.tensor<[R, E], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_bag_grad`: the result is <[R, E], bf16>, but its operands make it <[R, E/tp], bf16>
%i, %dy = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[B, E/tp], bf16>)
%dw = stg.embedding_bag_grad %i, %dy over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[B, E/tp], bf16>) -> !stg.tensor<[R, E], bf16>

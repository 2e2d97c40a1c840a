// Numbers are added up over a dim of their own, rows are those of one table each, and bags are whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.embedding_bag`: `K` is not a dim of the numbers <[B, J], i32> alone
%i, %w = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[R, E], bf16>)
%x = stg.embedding_bag %i, %w over "K" : (!stg.tensor<[B, J], i32>, !stg.tensor<[R, E], bf16>) -> !stg.tensor<[B, E], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_bag`: <[B], bf16> has no rows to choose from
%i, %w = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[B], bf16>)
%x = stg.embedding_bag %i, %w over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_bag`: rows by numbers <[B, J], i32> are [B, E], not <[B, J, E], bf16>
%i, %w = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[R, E], bf16>)
%x = stg.embedding_bag %i, %w over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[R, E], bf16>) -> !stg.tensor<[B, J, E], bf16>

// -----

// CHECK: error[E0709]: `stg.embedding_bag`: each device needs all of `N` and `T`
%i, %w = "test.op"() : () -> (!stg.tensor<[B, N/tp], i32>, !stg.tensor<[R, E], bf16>)
%x = stg.embedding_bag %i, %w over "N" to "T" : (!stg.tensor<[B, N/tp], i32>, !stg.tensor<[R, E], bf16>) -> !stg.tensor<[B, T, E], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.embedding_bag`: the result is <[B, E], bf16>, but its operands make it <[B, E], bf16, partial [tp]>
%i, %w = "test.op"() : () -> (!stg.tensor<[B, J], i32>, !stg.tensor<[R/tp, E], bf16>)
%x = stg.embedding_bag %i, %w over "J" : (!stg.tensor<[B, J], i32>, !stg.tensor<[R/tp, E], bf16>) -> !stg.tensor<[B, E], bf16>

// What is taken from a row has its dtype, and a number for each chosen expert.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.take_choice`: <[B, A], bf16> is not taken from <[B, X.all], fp32>
%w, %i = "test.op"() : () -> (!stg.tensor<[B, X.all], fp32>, !stg.tensor<[B, A], i32>)
%g = stg.take_choice %w by %i : (!stg.tensor<[B, X.all], fp32>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16>

// -----

// CHECK: error[E0709]: `stg.take_choice`: weights <[B, C], fp32> are not those of experts <[B, A], i32>
%w, %i = "test.op"() : () -> (!stg.tensor<[B, X.all], fp32>, !stg.tensor<[B, A], i32>)
%g = stg.take_choice %w by %i : (!stg.tensor<[B, X.all], fp32>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, C], fp32>

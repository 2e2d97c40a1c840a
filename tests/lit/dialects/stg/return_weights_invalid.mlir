// Copies are split as the tokens are, and keep their dtype.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.return_weights`: <[X/ep, N], fp32> is not a number for each copy of the tokens of <[B/ep, A], i32>
%w, %i = "test.op"() : () -> (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B/ep, A], i32>)
%g = stg.return_weights %w by %i : (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, A], fp32>

// -----

// CHECK: error[E0709]: `stg.return_weights`: <[B, A], fp32> are not those of the copies <[X/ep, N], fp32>
%w, %i = "test.op"() : () -> (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B, A], i32>)
%g = stg.return_weights %w by %i : (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], fp32>

// -----

// CHECK: error[E0709]: `stg.return_weights`: <[B, A], bf16> are not those of the copies <[X, N], fp32>
%w, %i = "test.op"() : () -> (!stg.tensor<[X, N], fp32>, !stg.tensor<[B, A], i32>)
%g = stg.return_weights %w by %i : (!stg.tensor<[X, N], fp32>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16>

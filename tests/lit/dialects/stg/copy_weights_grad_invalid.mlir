// A gradient is of the same copies.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.copy_weights_grad`: <[X, N, D], bf16> is no gradient of copies <[X, N, F], bf16>
%dy, %h = "test.op"() : () -> (!stg.tensor<[X, N, D], bf16>, !stg.tensor<[X, N, F], bf16>)
%w = stg.copy_weights_grad %dy, %h : (!stg.tensor<[X, N, D], bf16>, !stg.tensor<[X, N, F], bf16>) -> !stg.tensor<[X, N], fp32>

// -----

// CHECK: error[E0709]: `stg.copy_weights_grad`: <[X, F], fp32> are not numbers of copies <[X, N, F], bf16>
%dy, %h = "test.op"() : () -> (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, N, F], bf16>)
%w = stg.copy_weights_grad %dy, %h : (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, N, F], bf16>) -> !stg.tensor<[X, F], fp32>

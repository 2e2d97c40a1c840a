// There is one weight for each copy.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.weight_copies`: <[X, F], fp32> are not numbers of copies <[X, N, F], bf16>
%h, %w = "test.op"() : () -> (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, F], fp32>)
%y = stg.weight_copies %h by %w : (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, F], fp32>) -> !stg.tensor<[X, N, F], bf16>

// -----

// CHECK: error[E0709]: `stg.weight_copies`: the result has the dtype of the copies
%h, %w = "test.op"() : () -> (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, N], fp32>)
%y = stg.weight_copies %h by %w : (!stg.tensor<[X, N, F], bf16>, !stg.tensor<[X, N], fp32>) -> !stg.tensor<[X, N, F], fp32>

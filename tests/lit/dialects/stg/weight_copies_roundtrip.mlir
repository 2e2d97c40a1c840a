// Copies of tokens keep their dtype, whatever that of their weights.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%h, %w = "test.op"() : () -> (!stg.tensor<[X/ep, N, F], bf16>, !stg.tensor<[X/ep, N], fp32>)

// CHECK: %y = stg.weight_copies %h by %w : (!stg.tensor<[X/ep, N, F], bf16>, !stg.tensor<[X/ep, N], fp32>) -> !stg.tensor<[X/ep, N, F], bf16>
%y = stg.weight_copies %h by %w : (!stg.tensor<[X/ep, N, F], bf16>, !stg.tensor<[X/ep, N], fp32>) -> !stg.tensor<[X/ep, N, F], bf16>

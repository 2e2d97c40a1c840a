// Products over a dim that is split are terms of a sum.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %h = "test.op"() : () -> (!stg.tensor<[X/ep, N, F/tp], bf16>, !stg.tensor<[X/ep, N, F/tp], bf16>)

// CHECK: %w = stg.copy_weights_grad %dy, %h : (!stg.tensor<[X/ep, N, F/tp], bf16>, !stg.tensor<[X/ep, N, F/tp], bf16>) -> !stg.tensor<[X/ep, N], fp32, partial [tp]>
%w = stg.copy_weights_grad %dy, %h : (!stg.tensor<[X/ep, N, F/tp], bf16>, !stg.tensor<[X/ep, N, F/tp], bf16>) -> !stg.tensor<[X/ep, N], fp32, partial [tp]>

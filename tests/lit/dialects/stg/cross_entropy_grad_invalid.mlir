// The gradient is spread as the logits.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.cross_entropy_grad`: the result is <[B, V], bf16>, but its operands make it <[B, V/tp], bf16>
%d, %l, %t, %lse = "test.op"() : () -> (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>)
%dl = stg.cross_entropy_grad %d, %l, %t, %lse
  : (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B, V], bf16>

// The gradient at the targets is spread as the log-probabilities.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `stg.target_grad`: the result is <[B, V], fp32>, but its operands make it <[B, V/tp], fp32>
%d, %p, %t = "test.op"() : () -> (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], fp32>, !stg.tensor<[B], i32>)
%dt = stg.target_grad %d, %p, %t
  : (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], fp32>, !stg.tensor<[B], i32>) -> !stg.tensor<[B, V], fp32>

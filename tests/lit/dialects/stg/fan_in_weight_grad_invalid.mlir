// A gradient of weights is like them, and partial where products are.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.fan_in_weight_grad`: <[B, A], bf16> is not a gradient of <[B, A], bf16>, partial over [tp]
%d, %y, %g = "test.op"() : () -> (!stg.tensor<[Q, V, D/tp], bf16>, !stg.tensor<[X, T, D/tp], bf16>, !stg.tensor<[B, A], bf16>)
%w = stg.fan_in_weight_grad %d, %y for %g
  : (!stg.tensor<[Q, V, D/tp], bf16>, !stg.tensor<[X, T, D/tp], bf16>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, A], bf16>

// -----

// CHECK: error[E0709]: `stg.fan_in_weight_grad`: copies <[Q, V, D], bf16> do not become <[X, T, F], bf16>
%d, %y, %g = "test.op"() : () -> (!stg.tensor<[Q, V, D], bf16>, !stg.tensor<[X, T, F], bf16>, !stg.tensor<[B, A], bf16>)
%w = stg.fan_in_weight_grad %d, %y for %g
  : (!stg.tensor<[Q, V, D], bf16>, !stg.tensor<[X, T, F], bf16>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, A], bf16>

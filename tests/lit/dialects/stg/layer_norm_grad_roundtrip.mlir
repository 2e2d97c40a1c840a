// The gradient for x is linear in dy, which may be partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %mean, %rstd, %w = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>)
%p = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

// CHECK: %dx = stg.layer_norm_grad %dy, %x, %mean, %rstd weight %w over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>
%dx = stg.layer_norm_grad %dy, %x, %mean, %rstd weight %w over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>

// CHECK: %dp = stg.layer_norm_grad %p, %x, %mean, %rstd over [D] : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%dp = stg.layer_norm_grad %p, %x, %mean, %rstd over [D]
  : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

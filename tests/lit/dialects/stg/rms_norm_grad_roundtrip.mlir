// The gradient for x is linear in dy, which may be partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %rstd, %w = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>)
%p = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

// CHECK: %dx = stg.rms_norm_grad %dy, %x, %rstd weight %w over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>
%dx = stg.rms_norm_grad %dy, %x, %rstd weight %w over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>

// CHECK: %dp = stg.rms_norm_grad %p, %x, %rstd over [D] : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%dp = stg.rms_norm_grad %p, %x, %rstd over [D]
  : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

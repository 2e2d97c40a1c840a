// The norm keeps one fp32 number per position. A weight may be left out.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>)

// CHECK: %y, %rstd = stg.rms_norm %x weight %w over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>)
%y, %rstd = stg.rms_norm %x weight %w over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %z, %r = stg.rms_norm %x over [S, D] : (!stg.tensor<[B/dp, S, D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp], fp32>)
%z, %r = stg.rms_norm %x over [S, D] : (!stg.tensor<[B/dp, S, D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp], fp32>)

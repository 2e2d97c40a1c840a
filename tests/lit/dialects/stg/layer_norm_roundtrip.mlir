// The norm keeps mean and deviation, one fp32 number per position each. Weight and bias may be left out.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w, %b = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>)

// CHECK: %y, %mean, %rstd = stg.layer_norm %x affine(%w, %b) over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)
%y, %mean, %rstd = stg.layer_norm %x affine (%w, %b) over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %z, %m, %r = stg.layer_norm %x affine(%w) over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)
%z, %m, %r = stg.layer_norm %x affine (%w) over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %v, %n, %s = stg.layer_norm %x over [D] : (!stg.tensor<[B/dp, S, D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)
%v, %n, %s = stg.layer_norm %x over [D] : (!stg.tensor<[B/dp, S, D], bf16>) -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)

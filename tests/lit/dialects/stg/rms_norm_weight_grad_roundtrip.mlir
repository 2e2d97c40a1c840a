// The gradient for the weight sums over positions: partial over what splits them.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %rstd = "test.op"() : () -> (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp], fp32>)

// CHECK: %dw = stg.rms_norm_weight_grad %dy, %x, %rstd : (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp], fp32>) -> !stg.tensor<[D], bf16, partial [dp, tp]>
%dw = stg.rms_norm_weight_grad %dy, %x, %rstd
  : (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S/tp], fp32>) -> !stg.tensor<[D], bf16, partial [dp, tp]>

// The gradient for the weight sums over positions: partial over what splits them.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %s = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp], fp32>)

// CHECK: %dw = stg.layer_norm_weight_grad %dy, %x, %s, %s : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp], fp32>, !stg.tensor<[B/dp], fp32>) -> !stg.tensor<[D], bf16, partial [dp]>
%dw = stg.layer_norm_weight_grad %dy, %x, %s, %s
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp], fp32>, !stg.tensor<[B/dp], fp32>) -> !stg.tensor<[D], bf16, partial [dp]>

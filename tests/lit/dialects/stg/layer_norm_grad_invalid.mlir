// Statistics are spread as the positions that they are of.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.layer_norm_grad`: operands disagree about `B`: split over [dp] and over []
%dy, %x, %m = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B], fp32>)
%dx = stg.layer_norm_grad %dy, %x, %m, %m over [D]
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B/dp, D], bf16>

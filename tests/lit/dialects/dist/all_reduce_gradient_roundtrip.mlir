// Whole gradients are summed; other sums that they are terms of are left.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a = "test.op"() : () -> !stg.tensor<[D], fp32, partial [dp, tp]>

// CHECK: %g = dist.all_reduce_gradient(%a) over [dp] in "bf16" : (!stg.tensor<[D], fp32, partial [dp, tp]>) -> !stg.tensor<[D], fp32, partial [tp]>
%g = dist.all_reduce_gradient (%a) over [dp] in "bf16"
  : (!stg.tensor<[D], fp32, partial [dp, tp]>) -> !stg.tensor<[D], fp32, partial [tp]>

// What is summed over an axis is partial over it.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_reduce_gradient`: !stg.tensor<[D], fp32> is not partial over [dp]
%a = "test.op"() : () -> !stg.tensor<[D], fp32>
%g = dist.all_reduce_gradient (%a) over [dp] in "fp32" : (!stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>

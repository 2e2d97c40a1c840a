// Each gradient has a momentum of its dims, in bf16.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.momentum`: gradients come out in bf16
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%a = stg.momentum states "fp32" (%g) : (!stg.tensor<[D], fp32>) -> (!stg.tensor<[D], fp32>)

// A number goes on as one of the same type, and is one of what is to be known of all gradients.
// RUN: stagec-opt %s --split-input-file --verify-diagnostics | filecheck %s

// CHECK: there is no `mean`
%before = dist.found_before "mean" : !stg.tensor<[], fp32>

// -----

// CHECK: does not go on as
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%before = dist.found_before "norm" : !stg.tensor<[], bf16>
%found = stg.gradient_statistic "norm" (%g) from %before : !stg.tensor<[], bf16> : (!stg.tensor<[D], fp32>) -> !stg.tensor<[], fp32>

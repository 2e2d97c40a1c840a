// There are two, and each is one number.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.gradient_statistic`: there is no `mean`
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%n = stg.gradient_statistic "mean" (%g) : (!stg.tensor<[D], fp32>) -> !stg.tensor<[], fp32>

// -----

// CHECK: error[E0709]: `stg.gradient_statistic`: results are numbers
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%n = stg.gradient_statistic "norm" (%g) : (!stg.tensor<[D], fp32>) -> !stg.tensor<[D], fp32>

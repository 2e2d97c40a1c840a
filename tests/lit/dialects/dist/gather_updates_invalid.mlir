// What comes together is of the same type.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.gather_updates`: !stg.tensor<[D], fp32> becomes !stg.tensor<[D], fp32>, not !stg.tensor<[D], bf16>
%u = "test.op"() : () -> !stg.tensor<[D], fp32>
%x = dist.gather_updates (%u) over [rep] in "fp32" : (!stg.tensor<[D], fp32>) -> !stg.tensor<[D], bf16>

// A constant is a number, without dims.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.constant`: a number has no dims, but this is <[D], fp32>
%c = stg.constant "0.5" : !stg.tensor<[D], fp32>

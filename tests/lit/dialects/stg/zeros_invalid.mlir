// Zeros are a tensor.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: i32 should be of base attribute stg.tensor
%z = stg.zeros : i32

// A parameter is a tensor, or a stack of them.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.weight`: a weight is a tensor or a stack, not i32
%w = stg.weight "w" : i32

// State is a tensor, or a stack of them.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.cache`: a cache is a tensor or a stack, not i32
%k = stg.cache "k" : i32

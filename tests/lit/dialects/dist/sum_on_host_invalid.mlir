// A sum is of something.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.sum_on_host`: a copy is of some value
dist.sum_on_host () : () -> ()

// Each text is one pass.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.passes`: `a,b` is not a pass with its arguments
dist.passes ["a,b"]

// -----

// CHECK: error[E0709]: `dist.passes`: `a{` is not a pass with its arguments
dist.passes ["a{"]

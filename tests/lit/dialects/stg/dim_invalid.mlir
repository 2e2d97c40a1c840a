// The size of a dim is an expression over names.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `D//H` is not a size
stg.dim "E" = "D//H"

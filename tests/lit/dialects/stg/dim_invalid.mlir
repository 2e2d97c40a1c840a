// The size of a dim is an expression over names.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `D//H` is not a size
stg.dim "E" = "D//H"

// -----

// CHECK: error[E0709]: `stg.dim`: what is padded is a part of its size
stg.dim "V" = "8" pads "V.unpadded"

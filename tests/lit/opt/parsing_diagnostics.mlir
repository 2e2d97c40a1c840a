// With `--parsing-diagnostics`, text that is no IR is output, and no failure.
// RUN: stagec-opt %s --parsing-diagnostics --split-input-file | filecheck %s

// CHECK:      error[E0708]
// CHECK-NEXT: --> {{.*}}parsing_diagnostics.mlir:[[# @LINE + 1]]:14
dist.mesh <dp>

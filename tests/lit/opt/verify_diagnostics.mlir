// With `--verify-diagnostics`, IR that does not verify is output, and no failure.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK:      error[E0709]: `dist.mesh`: axis `dp` has size 0
// CHECK-NEXT: --> {{.*}}verify_diagnostics.mlir:[[# @LINE + 3]]:1
// CHECK-NEXT: |
// CHECK-NEXT: dist.mesh <dp = 0>
dist.mesh <dp = 0>

// -----

// CHECK: dist.mesh <dp = 1>
dist.mesh <dp = 1>

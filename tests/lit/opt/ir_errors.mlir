// Text that is no IR, and IR that does not verify, are reported with their places, chunk by chunk.
// RUN: not stagec-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK:      error[E0708]: operation stg.nothing is not registered
// CHECK-NEXT: --> {{.*}}ir_errors.mlir:[[# @LINE + 3]]:14
// CHECK-NEXT: |
// CHECK-NEXT: "stg.nothing"() : () -> ()
"stg.nothing"() : () -> ()

// -----

// CHECK:      error[E0709]: `dist.mesh`: axis `dp` has size 0
// CHECK-NEXT: --> {{.*}}ir_errors.mlir:[[# @LINE + 3]]:1
// CHECK-NEXT: |
// CHECK-NEXT: dist.mesh <dp = 0>
dist.mesh <dp = 0>

// A file without a word of IR is answered with where IR comes from.
// RUN: echo > %t.mlir
// RUN: not stagec %t.mlir 2>&1 | filecheck %s

// CHECK:      error[E0708]: there is no IR in this text
// CHECK-NEXT:  --> {{.*}}.mlir
// CHECK-NEXT:   = help: `stagec MODEL.stg --stop-after PASS` prints the IR after a pass

// Ops beside a module are in no program: it is said, whatever passes come.
// RUN: not stagec-opt %s -p propagate-shardings 2>&1 | filecheck %s

builtin.module {
  stg.dim "B" = "8"
}
stg.dim "D" = "8"

// CHECK: error[E0708]: a module in a module: ops stand before or after the one that is meant
// CHECK-NEXT:  --> {{.*}}/module_in_module.mlir:4:1
// CHECK: = help: write the ops of one module

// Axes that do not divide a dim, alone and together: each is an error, at the rule.
// RUN: not stagec-opt %s -p propagate-shardings 2>&1 | filecheck %s

stg.dim "F" = "12"
stg.dim "S" = "12"
dist.mesh <cp = 4, tp = 8>
// CHECK:      error[E0301]: `tp = 8` does not divide `F = 12`
// CHECK-NEXT:  --> {{.*}}does_not_divide.mlir:[[# @LINE + 4]]:1
// CHECK-NEXT:   |
// CHECK-NEXT: {{.*}} dist.rule [F] over [tp]
// CHECK-NEXT:   | ^^^^ splits `x`
dist.rule [F] over [tp]
// CHECK-NEXT:   = help: choose `tp = 6` or `F = 16`
// CHECK:      error[E0301]: `cp = 4` and `tp = 8` together do not divide `S = 12`
dist.rule [S] over [cp, tp]
// CHECK:        = help: choose `tp = 3` or `S = 32`
stg.program "M" () {
  %x, %y = "test.op"() : () -> (!stg.tensor<[B, F], bf16>, !stg.tensor<[B, S], bf16>)
  stg.output
}

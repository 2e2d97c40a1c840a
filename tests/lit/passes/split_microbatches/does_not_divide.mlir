// A rank's sequences are a whole number of microbatches.
// RUN: not stagec-opt %s -p 'split-microbatches{dim="B" size=3}' 2>&1 | filecheck %s

stg.dim "B" = "32"
dist.mesh <dp = 4>
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %y = "test.op"(%x) : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
  stg.output
}

// CHECK:      error[E0308]: microbatches of 3 do not divide the 8 of `B` on each rank
// CHECK-NEXT:  --> {{.*}}does_not_divide.mlir:6:1
// CHECK-NEXT:   |
// CHECK-NEXT: 6 | stg.program "M"
// CHECK-NEXT:   | ^
// CHECK-NEXT:   = note: `B = 32` over dp
// CHECK-NEXT:   = help: choose a microbatch that divides it, or another batch

// A model on one mesh stays whole.
// RUN: stagec-opt %s -p cut-towers | filecheck %s

!x = !stg.tensor<[B, D], bf16>
// CHECK: stg.program
// CHECK-NOT: dist.tower
stg.program "M" (%i : !x) {
  // CHECK: stg.repeat "K"
  %v = stg.repeat "K" carry(%h = %i : !x) -> (!x) {
    stg.yield %h : !x
  }
  stg.output %v : !x
}

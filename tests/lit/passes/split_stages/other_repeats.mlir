// A repeat of the same count that is neither of the forward pass nor its gradient: a later pass made it.
// RUN: not stagec-opt %s -p 'split-stages{counts="L" axis="pp" stages=2}' 2>&1 | filecheck %s

// CHECK:      error[E0705]: `split-stages` cuts the layers of the forward pass and their gradients, one of each
// CHECK:        = note: `M` has 3 repeats of this count: `reduce-gradients` made others
// CHECK:        = help: run it before the passes that make repeats of their own

stg.dim "L" = "4"
dist.mesh <pp = 2>
stg.program "M" (%t : !stg.tensor<[B, D], bf16>) {
  stg.accumulate over "mb" {
    %y = stg.repeat "L" carry(%h = %t : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
      stg.yield %h : !stg.tensor<[B, D], bf16>
    }
    %g = stg.repeat "L" reverse carry(%h = %y : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd", made_by = "build-backward"} {
      stg.yield %h : !stg.tensor<[B, D], bf16>
    }
    %r = stg.repeat "L" reverse carry(%h = %g : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) attributes {phase = "grad_reduce", made_by = "reduce-gradients"} {
      stg.yield %h : !stg.tensor<[B, D], bf16>
    }
    stg.yield
  }
  stg.output
}

// An op that reads terms of a sum, and makes none, would compute with one rank's term as if it were the sum.
// RUN: not stagec-opt %s -p lower-to-tasks 2>&1 | filecheck %s

// CHECK: error[E0709]: `stg.optimizer_step` reads terms of a sum over `dp`, which nobody has summed
// CHECK: note: an operand is a `!stg.tensor<[D], fp32, partial [dp]>`
// CHECK: help: reduce it first: `reduce-gradients` does that of gradients, `insert-collectives` of others
stg.dim "D" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.tensor<[D], fp32, partial [dp]>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  stg.optimizer_step "adamw" states "fp32"(%w) from(%g) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32, partial [dp]>
  stg.output
}

// Axes that split the batch of some value split it, though another value has it whole.
// RUN: stagec-opt %s -p 'split-microbatches{dim="B" size=2}' | filecheck %s

stg.dim "B" = "32"
dist.mesh <dp = 4>
// CHECK: stg.dim "mb" = "B/(2*dp)"
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: !stg.tensor<[B/mb, D], bf16>, !stg.tensor<[B/(mb*dp), D], bf16>
  %a, %b = "test.op"(%x) : (!stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B/dp, D], bf16>)
  stg.output
}

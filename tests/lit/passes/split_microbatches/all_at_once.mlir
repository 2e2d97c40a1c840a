// Without a size the whole batch is one microbatch.
// RUN: stagec-opt %s -p 'split-microbatches{dim="B"}' | filecheck %s

stg.dim "B" = "32"
dist.mesh <dp = 4>
// CHECK: stg.dim "mb" = "1"
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  // CHECK: stg.accumulate over "mb"
  %dw = "test.op"(%x, %w) : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16, partial [dp]>
  stg.output weights %w : !stg.tensor<[D], bf16> gradients %dw : !stg.tensor<[D], bf16, partial [dp]>
}

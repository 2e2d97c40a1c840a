// Gradients add up in the dtype that the plan says, in stacks too.
// RUN: stagec-opt %s -p 'split-microbatches{dim="B" size=2 gradients="bf16"}' | filecheck %s

stg.dim "B" = "32"
dist.mesh <dp = 4>
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  // CHECK: stg.accumulate over "mb" -> (!stg.stack<"L" x !stg.tensor<[D], bf16, partial [dp]>>)
  %dw = "test.op"(%x, %w) : (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp]>>
  stg.output weights %w : !stg.stack<"L" x !stg.tensor<[D], bf16>> gradients %dw : !stg.stack<"L" x !stg.tensor<[D], fp32, partial [dp]>>
}

// Inputs arrive as each reader needs them: they stay whole.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <dp = 4>
dist.rule [B] over [dp]
// CHECK: stg.program "M" (%x: !stg.tensor<[B, D], bf16>)
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: -> !stg.tensor<[B/dp, D], bf16>
  %y = stg.unary "silu" %x : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  stg.output %y : !stg.tensor<[B, D], bf16>
}

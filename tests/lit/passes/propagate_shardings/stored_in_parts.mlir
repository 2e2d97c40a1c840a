// What is stored in parts has its placement already: by `shard-parameters`, which comes later.
// RUN: not stagec-opt %s -p propagate-shardings 2>&1 | filecheck %s

// CHECK: error[E0705]: `propagate-shardings` places whole tensors, and this one is stored in parts already

stg.dim "L" = "2"
dist.mesh <dp = 2>
dist.rule [D] over [dp]
stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !dist.shard<!stg.tensor<[D], fp32> over [dp]>
  stg.output
}

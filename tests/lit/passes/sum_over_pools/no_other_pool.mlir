// A weight of one pool stays as it is.
// RUN: stagec-opt %s -p 'sum-over-pools{axes="dp"}' | filecheck %s

dist.mesh <dp = 2>
dist.pool "text" ranks 2 to 4 of 4
// CHECK-NOT: dist.tower_send
// CHECK: gradients %g
stg.program "M" () {
  %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[V, D], bf16, partial [dp]>
  stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %g : !stg.tensor<[V, D], bf16, partial [dp]>
}

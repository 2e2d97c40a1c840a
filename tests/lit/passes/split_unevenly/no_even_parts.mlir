// Where the axes divide a dim, or a rule does not let parts differ, nothing changes.
// RUN: stagec-opt %s -p 'split-unevenly' | filecheck %s

// CHECK-NOT: part
stg.dim "X" = "12"
stg.dim "V" = "10"
dist.mesh <ep = 4, tp = 5>
dist.rule [X] over [ep] uneven "chunk"
dist.rule [V] over [tp]
stg.program "M" () {
  // CHECK: stg.weight "w" : !stg.tensor<[X/ep, V/tp], bf16>
  %w = stg.weight "w" : !stg.tensor<[X/ep, V/tp], bf16>
  stg.output
}

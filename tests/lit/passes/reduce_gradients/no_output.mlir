// A program without its output has no gradients to be reduced.
// RUN: not stagec-opt %s -p 'reduce-gradients{axes=dp}' 2>&1 | filecheck %s

// CHECK: error[E0709]: `M` does not end in `stg.output`

dist.mesh <dp = 2>
stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
}

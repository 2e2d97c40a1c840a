// The stage that tells other pools has a program of its own.
// RUN: not stagec-opt %s -p 'sum-over-pools{axes="dp"}' 2>&1 | filecheck %s

// CHECK: error[E0423]: several stages of `text` between its first and its last begin with the weight `embed`, which is trained in `vision` and `text`
// CHECK: = note: one stage of a pool tells the others what all its stages have, and these run one program
// CHECK: = help: let the first or the last stage of `text` have it, or give each pool a weight of its own
dist.mesh <pp = 4>
dist.pool "text" ranks 2 to 6 of 6
dist.shared "embed" first 0 of [vision, text]
dist.stages ["first", "middle", "middle", "last"] over "pp"
stg.program "M" () attributes {kind = "first"} {
  stg.output
}
stg.program "M" () attributes {kind = "middle"} {
  %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[V, D], bf16>
  stg.output weights %w : !stg.tensor<[V, D], bf16> gradients %g : !stg.tensor<[V, D], bf16>
}
stg.program "M" () attributes {kind = "last"} {
  stg.output
}

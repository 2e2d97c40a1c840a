// Each weight has its gradient.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.output`: one gradient per weight
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  stg.output weights %w : !stg.tensor<[D], bf16>
}

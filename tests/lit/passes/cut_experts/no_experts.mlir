// A model without experts has no part for a pool of them.
// RUN: stagec-opt %s -p cut-experts --verify-diagnostics | filecheck %s

dist.experts on "experts" others on "attention"
dist.pool "experts" ranks 4 to 8 of 8
// CHECK: error[E0423]: `M` has no experts that a pool of their own could run
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  stg.output %x : !stg.tensor<[B, D], bf16>
}

// A module that is named is one that the model calls.
// RUN: stagec-opt %s -p cut-experts --verify-diagnostics | filecheck %s

dist.experts with [Shard] on "experts" others on "attention"
dist.pool "experts" ranks 4 to 8 of 8
// CHECK: error[E0423]: `M` computes nothing in a module `Shard`
// CHECK: did you mean `Shared`?
stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %y = stg.unary "exp" %x {scope = "Shared"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  stg.output %y : !stg.tensor<[B, D], bf16>
}

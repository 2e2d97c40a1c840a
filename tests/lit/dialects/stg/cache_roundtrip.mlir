// State of requests: one tensor, or one per iteration of the repeats around it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %k = stg.cache "Attention.k" : !stg.tensor<[B, T.stored, K/tp, E], fp8>
%k = stg.cache "Attention.k" : !stg.tensor<[B, T.stored, K/tp, E], fp8>

// CHECK: %ks = stg.cache "Block.k" {scope = "Block"} : !stg.stack<"L" x !stg.tensor<[B, T.stored, E], bf16>>
%ks = stg.cache "Block.k" {scope = "Block"} : !stg.stack<"L" x !stg.tensor<[B, T.stored, E], bf16>>

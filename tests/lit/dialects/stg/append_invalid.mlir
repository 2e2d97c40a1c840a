// What is new has the dims of the cache, but for that of positions.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.append`: [B, S, E] over `S` is not appended to [B, T, E]
%k = stg.cache "k" : !stg.tensor<[B, T, E], bf16>
%new = "test.op"() : () -> !stg.tensor<[B, S, E], bf16>
%all = stg.append %k, %new over "S" into "T" : (!stg.tensor<[B, T, E], bf16>, !stg.tensor<[B, S, E], bf16>) -> !stg.tensor<[B, T, E], bf16>

// -----

// CHECK: error[E0709]: `stg.append`: operands disagree about `K`: split over [tp] and over []
%k = stg.cache "k" : !stg.tensor<[B, T.stored, K/tp], bf16>
%new = "test.op"() : () -> !stg.tensor<[B, S, K], bf16>
%all = stg.append %k, %new over "S" into "T" : (!stg.tensor<[B, T.stored, K/tp], bf16>, !stg.tensor<[B, S, K], bf16>) -> !stg.tensor<[B, T, K/tp], bf16>

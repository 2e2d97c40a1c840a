// What another pool computes is written into the cache.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%c = stg.cache "k" : !stg.tensor<[B, T.stored, K/tp, E], bf16>

// CHECK: %all = dist.pool_recv(%c) from "prefill" rank "floordiv(tp.index, 2)" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T.stored, K/tp, E], bf16> -> !stg.tensor<[B, T.stored, K/tp, E], bf16>
%all = dist.pool_recv (%c) from "prefill" rank "floordiv(tp.index, 2)" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T.stored, K/tp, E], bf16> -> !stg.tensor<[B, T.stored, K/tp, E], bf16>

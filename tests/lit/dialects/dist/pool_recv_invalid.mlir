// A cache that is written into stays as large.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.pool_recv`: a cache stays what it is
%c = stg.cache "k" : !stg.tensor<[B, T.stored, K/tp, E], bf16>
%all = dist.pool_recv (%c) from "prefill" rank "tp.index" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T.stored, K/tp, E], bf16> -> !stg.tensor<[B, T, K/tp, E], bf16>

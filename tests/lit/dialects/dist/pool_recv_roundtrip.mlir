// What another pool computes is written into the cache.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%c = stg.cache "k" : !stg.tensor<[B, T.stored, K/tp, E], bf16>

// CHECK: %all = dist.pool_recv(%c) from "prefill" rank "floordiv(tp.index, 2)" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T.stored, K/tp, E], bf16> -> !stg.tensor<[B, T.stored, K/tp, E], bf16>
%all = dist.pool_recv (%c) from "prefill" rank "floordiv(tp.index, 2)" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T.stored, K/tp, E], bf16> -> !stg.tensor<[B, T.stored, K/tp, E], bf16>

// CHECK: %v = dist.pool_recv from "vision" going "forward" rank "2*dp.index" channel 0 in "bf16" bytes "B*D/2" : -> !stg.tensor<[B, D], bf16>
%v = dist.pool_recv from "vision" going "forward" rank "2*dp.index" channel 0 in "bf16" bytes "B*D/2" : -> !stg.tensor<[B, D], bf16>

// CHECK: %t = dist.pool_recv from "experts" rank "dp.index + 4" channel 1 in "bf16" bytes "D*T*X" {purpose = "ep", gives_way} : -> !stg.tensor<[X, T, D], bf16>
%t = dist.pool_recv from "experts" rank "4 + dp.index" channel 1 in "bf16" bytes "X*T*D" {purpose = "ep", gives_way} : -> !stg.tensor<[X, T, D], bf16>

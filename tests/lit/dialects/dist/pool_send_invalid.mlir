// A peer is of a stage where its pool has stages, and what is sent is of some dtype.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.pool_send`: a peer is of a stage where its pool has stages by layer
%k = "test.op"() : () -> !stg.tensor<[B, T, K/tp, E], bf16>
dist.pool_send (%k) to "decode" rank "8 + pool.stage" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T, K/tp, E], bf16>

// -----

// CHECK: error[E0709]: `dist.pool_send`: there is no dtype `bf8`
%k = "test.op"() : () -> !stg.tensor<[B, T, K/tp, E], bf16>
dist.pool_send (%k) to "decode" rank "8" channel 0 in "bf8" bytes "4096*E*K" : !stg.tensor<[B, T, K/tp, E], bf16>

// -----

// CHECK: error[E0709]: `dist.pool_send`: the other pool has a name
%k = "test.op"() : () -> !stg.tensor<[B, T, K/tp, E], bf16>
dist.pool_send (%k) to "" rank "8" channel 0 in "bf16" bytes "4096*E*K" : !stg.tensor<[B, T, K/tp, E], bf16>

// -----

%v = "test.op"() : () -> !stg.tensor<[B, D], bf16>
// CHECK: error[E0709]: `dist.pool_send`: a value goes forward or backward, not `up`
dist.pool_send (%v) to "text" going "up" rank "8" channel 0 in "bf16" bytes "B*D" : !stg.tensor<[B, D], bf16>

// A message to another pool names the peer in the sender's coordinates, and where each layer is if that pool has stages.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = "test.op"() : () -> !stg.tensor<[B, T, K/tp, E], bf16>

// CHECK: sched.pool_send(%k) to "decode" rank "tp.index + 8" channel 0 in "bf16" bytes "4096*E*K" on "pool.send" : !stg.tensor<[B, T, K/tp, E], bf16>
sched.pool_send (%k) to "decode" rank "8 + tp.index" channel 0 in "bf16" bytes "4096*E*K" on "pool.send" : !stg.tensor<[B, T, K/tp, E], bf16>

// CHECK: sched.pool_send(%k) to "decode" rank "2*pool.stage + tp.index + 8" at <0 x 3, 1 x 2> channel 1 in "bf16" bytes "4096*E*K" on "pool.send" : !stg.tensor<[B, T, K/tp, E], bf16>
sched.pool_send (%k) to "decode" rank "8 + tp.index + 2*pool.stage" at <0 x 3, 1 x 2> channel 1 in "bf16" bytes "4096*E*K" on "pool.send" : !stg.tensor<[B, T, K/tp, E], bf16>

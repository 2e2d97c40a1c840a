// A send as a task: its peer, channel, dtype, bytes and stream.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>

// CHECK: sched.send(%k) to 1 over [cp] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp" : !stg.tensor<[S/cp, K, E], bf16>
sched.send (%k) to 1 over [cp] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp" : !stg.tensor<[S/cp, K, E], bf16>

// A receive as a task, on a stream of its own.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %k = sched.recv from -1 over [cp] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp.recv" : !stg.tensor<[S/cp, K, E], bf16>
%k = sched.recv from -1 over [cp] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp.recv" : !stg.tensor<[S/cp, K, E], bf16>

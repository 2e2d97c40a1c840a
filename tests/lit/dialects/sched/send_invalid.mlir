// A send has values and an axis.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.send`: a transfer is along some axis
%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>
sched.send (%k) to 1 over [] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp" : !stg.tensor<[S/cp, K, E], bf16>

// -----

// CHECK: error[E0709]: `sched.send`: there is no dtype `bf61`
%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>
sched.send (%k) to 1 over [cp] channel 0 in "bf61" bytes "2*E*K*S/cp" on "comm.cp" : !stg.tensor<[S/cp, K, E], bf16>

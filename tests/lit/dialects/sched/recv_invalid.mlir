// A receive is along some axis.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.recv`: a transfer is along some axis
%k = sched.recv from -1 over [] channel 0 in "bf16" bytes "2*E*K*S/cp" on "comm.cp.recv" : !stg.tensor<[S/cp, K, E], bf16>

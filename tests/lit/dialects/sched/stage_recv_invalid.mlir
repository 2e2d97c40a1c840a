// A value comes forward or backward, and values are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.stage_recv`: a value goes forward or backward, not `up`
%h = sched.stage_recv "up" 0 on "p2p.recv" : !stg.tensor<[B/(mb*dp), S, D], bf16>

// -----

// CHECK: error[E0709]: `sched.stage_recv`: numbers count from 0, not from -2
%h = sched.stage_recv "forward" -2 on "p2p.recv" : !stg.tensor<[B/(mb*dp), S, D], bf16>

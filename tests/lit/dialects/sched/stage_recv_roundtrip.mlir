// A receive from a neighbouring stage has a stream of its own.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %{{.*}} = sched.stage_recv "backward" 1 on "p2p.recv" : !stg.tensor<[B/(mb*dp), S, D], bf16>
%h = sched.stage_recv "backward" 1 on "p2p.recv" : !stg.tensor<[B/(mb*dp), S, D], bf16>

// A receive makes a value of the type that its stage needs.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %{{.*}} = dist.stage_recv "backward" 1 : !stg.tensor<[B/(mb*dp), S, D], bf16>
%h = dist.stage_recv "backward" 1 : !stg.tensor<[B/(mb*dp), S, D], bf16>

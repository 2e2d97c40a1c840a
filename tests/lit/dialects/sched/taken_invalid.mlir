// Stages that give are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `sched.taken`: numbers count from 0, not from -1
%g = sched.taken "embed" -1 : !stg.tensor<[V/tp, D], fp32>

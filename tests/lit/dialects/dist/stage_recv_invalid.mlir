// A value comes forward or backward, and values are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.stage_recv`: a value goes forward or backward, not `up`
%h = dist.stage_recv "up" 0 : !stg.tensor<[B/(mb*dp), S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.stage_recv`: numbers count from 0, not from -2
%h = dist.stage_recv "forward" -2 : !stg.tensor<[B/(mb*dp), S, D], bf16>

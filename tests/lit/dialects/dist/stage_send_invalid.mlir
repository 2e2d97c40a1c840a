// A value goes forward or backward, and values are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.stage_send`: a value goes forward or backward, not `sideways`
%h = "test.op"() : () -> !stg.tensor<[B/(mb*dp), S, D], bf16>
dist.stage_send "sideways" 0 %h : !stg.tensor<[B/(mb*dp), S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.stage_send`: numbers count from 0, not from -1
%h = "test.op"() : () -> !stg.tensor<[B/(mb*dp), S, D], bf16>
dist.stage_send "forward" -1 %h : !stg.tensor<[B/(mb*dp), S, D], bf16>

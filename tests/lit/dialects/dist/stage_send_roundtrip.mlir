// A send says which way a value goes, and which of those that cross it is.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%h = "test.op"() : () -> !stg.tensor<[B/(mb*dp), S, D], bf16>

// CHECK: dist.stage_send "forward" 0 %h : !stg.tensor<[B/(mb*dp), S, D], bf16>
dist.stage_send "forward" 0 %h : !stg.tensor<[B/(mb*dp), S, D], bf16>

// An error tells how the plan splits a value, not into how many microbatches.
// RUN: not stagec-opt %s -p insert-collectives 2>&1 | filecheck %s

// CHECK: error[E0307]: a value split as [B/(dp*cp), D] cannot become [B/cp, D]: gathering the major axis of a dim alone would permute it
%x = "test.op"() : () -> !stg.tensor<[B/(mb*dp*cp), D], bf16>
%r = dist.reshard %x : !stg.tensor<[B/(mb*dp*cp), D], bf16> -> !stg.tensor<[B/(mb*cp), D], bf16>

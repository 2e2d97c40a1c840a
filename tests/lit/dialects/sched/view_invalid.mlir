// A view is of a value of ours.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.view`: a view is of a tensor, a shard or a stack, not of i32
%x = "test.op"() : () -> i32
%y = sched.view %x : i32 -> i32

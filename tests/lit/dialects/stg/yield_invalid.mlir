// A body hands on tensors, shards and stacks.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.yield`: a body hands on tensors, shards and stacks, not i32
%x = "test.op"() : () -> i32
stg.repeat "L" {
  stg.yield %x : i32
}

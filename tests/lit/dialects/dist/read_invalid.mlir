// Only tensors, shards and stacks are copied, and keep their types.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.read`: f32 is not a tensor, shard or stack
%h = "test.op"() : () -> f32
%x = dist.read (%h) : (f32) -> f32

// -----

// CHECK: error[E0709]: `dist.read`: a copy has the type of what is copied
%h = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%x = dist.read (%h) : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B], bf16>

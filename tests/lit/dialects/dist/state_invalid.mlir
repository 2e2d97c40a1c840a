// States are counted from 0, and are tensors, shards or stacks.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.state`: states are counted from 0
%m = dist.state "w" -1 : !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `dist.state`: i32 is not a tensor, shard or stack
%m = dist.state "w" 0 : i32

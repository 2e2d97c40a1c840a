// What the optimizer keeps of a weight, and which of it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %m = dist.state "Block.w" 0 : !stg.stack<"L" x !stg.tensor<[D], fp32>>
%m = dist.state "Block.w" 0 : !stg.stack<"L" x !stg.tensor<[D], fp32>>
// CHECK: %v = dist.state "embed" 1 : !dist.shard<!stg.tensor<[V, D], fp32> over [dp]>
%v = dist.state "embed" 1 : !dist.shard<!stg.tensor<[V, D], fp32> over [dp]>

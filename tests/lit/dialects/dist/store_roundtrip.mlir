// Values go to the host, each as it is: tensors, shards, stacks.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>)

// CHECK: %h, %v = dist.store(%x, %w) : (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>) -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>)
%h, %v = dist.store (%x, %w)
  : (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>)
  -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>)

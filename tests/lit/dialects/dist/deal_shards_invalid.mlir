// Only shards are dealt, and as many bytes come as go.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.deal_shards`: !stg.tensor<[D], bf16> is not a shard
%a = "test.op"() : () -> !stg.tensor<[D], bf16>
%b = dist.deal_shards (%a) over [dp] in "bf16" : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `dist.deal_shards`: !dist.shard<!stg.tensor<[D], bf16> over [dp]> becomes !dist.shard<!stg.tensor<[D], bf16> over [dp]>, not !dist.shard<!stg.tensor<[D], fp32> over [dp]>
%c = "test.op"() : () -> !dist.shard<!stg.tensor<[D], bf16> over [dp]>
%d = dist.deal_shards (%c) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D], bf16> over [dp]>) -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>

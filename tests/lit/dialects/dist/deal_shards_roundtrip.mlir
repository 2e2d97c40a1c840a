// Shards are exchanged for whole tensors of a rank's own, as one all-to-all, also over axes that split the tensors.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>

// CHECK: dist.deal_shards(%a) over [dp, tp] in "bf16" : (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
%b = dist.deal_shards (%a) over [dp, tp] in "bf16"
  : (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>

// Shards are summed over replicas.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>

// CHECK: %g = dist.all_reduce_shard(%a) over [pod] in "fp32" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
%g = dist.all_reduce_shard (%a) over [pod] in "fp32"
  : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>

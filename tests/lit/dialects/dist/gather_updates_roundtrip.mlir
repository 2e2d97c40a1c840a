// Ranks that store the same computed an equal share each.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%u = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F], fp32> over [dp]>

// CHECK: %x = dist.gather_updates(%u) over [rep] in "fp32" : (!dist.shard<!stg.tensor<[D, F], fp32> over [dp]>) -> !dist.shard<!stg.tensor<[D, F], fp32> over [dp]>
%x = dist.gather_updates (%u) over [rep] in "fp32" : (!dist.shard<!stg.tensor<[D, F], fp32> over [dp]>) -> !dist.shard<!stg.tensor<[D, F], fp32> over [dp]>

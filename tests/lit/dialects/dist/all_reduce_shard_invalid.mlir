// The sum of shards is a shard like them, and no axis is summed over that they are split over.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_reduce_shard`: !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]> becomes !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>, not !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>
%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
%g = dist.all_reduce_shard (%a) over [pod] in "fp32" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>

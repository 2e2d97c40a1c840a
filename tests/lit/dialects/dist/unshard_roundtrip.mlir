// A unit's shards become whole parameters, in the dtype that travels; stacks too.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a, %b = "test.op"() : () -> (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>>)

// CHECK: %w, %ws = dist.unshard(%a, %b) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>>) -> (!stg.tensor<[D, F/tp], bf16>, !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>)
%w, %ws = dist.unshard (%a, %b) over [dp] in "bf16"
  : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>>) -> (!stg.tensor<[D, F/tp], bf16>, !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>)

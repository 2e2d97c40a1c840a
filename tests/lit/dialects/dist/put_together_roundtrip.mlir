// A tensor of its parts.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%s = "test.op"() : () -> !stg.stack<"X/ep" x !dist.shard<!stg.tensor<[D, F], fp32> over [edp] rows 2>>

// CHECK: %a = dist.put_together %s : !stg.stack<"X/ep" x !dist.shard<!stg.tensor<[D, F], fp32> over [edp] rows 2>> -> !dist.shard<!stg.tensor<[X/ep, D, F], fp32> over [edp] rows 3>
%a = dist.put_together %s : !stg.stack<"X/ep" x !dist.shard<!stg.tensor<[D, F], fp32> over [edp] rows 2>> -> !dist.shard<!stg.tensor<[X/ep, D, F], fp32> over [edp] rows 3>

// A tensor, or its shard, as a stack of its parts along the first dim, of what a rank has.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %s = "test.op"() : () -> (!stg.tensor<[X/ep, D, F], fp32, partial [edp]>, !dist.shard<!stg.tensor<[X/ep, D, F], bf16> over [edp] rows 3>)

// CHECK: %a = dist.take_apart %g : !stg.tensor<[X/ep, D, F], fp32, partial [edp]> -> !stg.stack<"X/ep" x !stg.tensor<[D, F], fp32, partial [edp]>>
%a = dist.take_apart %g : !stg.tensor<[X/ep, D, F], fp32, partial [edp]> -> !stg.stack<"X/ep" x !stg.tensor<[D, F], fp32, partial [edp]>>

// CHECK: %b = dist.take_apart %s : !dist.shard<!stg.tensor<[X/ep, D, F], bf16> over [edp] rows 3> -> !stg.stack<"X/ep" x !dist.shard<!stg.tensor<[D, F], bf16> over [edp] rows 2>>
%b = dist.take_apart %s : !dist.shard<!stg.tensor<[X/ep, D, F], bf16> over [edp] rows 3> -> !stg.stack<"X/ep" x !dist.shard<!stg.tensor<[D, F], bf16> over [edp] rows 2>>

// A stored shard: of which tensor, and over which axes.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: !dist.shard<!stg.tensor<[H/tp, E, D], fp32> over [dp, cp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over []>>
%a, %b = "test.op"() : () -> (!dist.shard<!stg.tensor<[H/tp, E, D], fp32> over [dp, cp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over []>>)

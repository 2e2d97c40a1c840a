// A shard is of a tensor, over axes that do not split it already.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: an axis is used twice in <[D/dp], fp32> over [dp]
%x = "test.op"() : () -> !dist.shard<!stg.tensor<[D/dp], fp32> over [dp]>

// -----

// CHECK: error[E0708]: expected a tensor
%x = "test.op"() : () -> !dist.shard<i32 over [dp]>

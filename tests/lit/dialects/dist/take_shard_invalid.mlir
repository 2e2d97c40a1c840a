// A shard is of the parameter that it is taken from.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.take_shard`: !stg.tensor<[D, F/tp], bf16> becomes !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>, not !dist.shard<!stg.tensor<[D, F/tp], bf16> over [cp]>
%a = "test.op"() : () -> !stg.tensor<[D, F/tp], bf16>
%s = dist.take_shard (%a) over [dp] in "bf16" : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [cp]>

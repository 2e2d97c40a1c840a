// A part that stays is of the parameter that was gathered.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.keep_shard`: !stg.tensor<[D], bf16> becomes !dist.shard<!stg.tensor<[D], bf16> over [dp] within [node]>, not !dist.shard<!stg.tensor<[D], fp32> over [dp] within [node]>
%a = "test.op"() : () -> !stg.tensor<[D], bf16>
%s = dist.keep_shard (%a) over [dp] in "bf16" : (!stg.tensor<[D], bf16>) -> !dist.shard<!stg.tensor<[D], fp32> over [dp] within [node]>

// A parameter, or one per iteration of the repeats around it, as it is stored.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %w = stg.weight "head" : !stg.tensor<[D, V/tp], bf16>
%w = stg.weight "head" : !stg.tensor<[D, V/tp], bf16>

// CHECK: %ws = stg.weight "blocks.wq" : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D, H/tp, E], bf16>>>
%ws = stg.weight "blocks.wq" : !stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[D, H/tp, E], bf16>>>

// CHECK: %shard = stg.weight "embed" {scope = "Embed"} : !dist.shard<!stg.tensor<[V/tp, D], fp32> over [dp]>
%shard = stg.weight "embed" {scope = "Embed"} : !dist.shard<!stg.tensor<[V/tp, D], fp32> over [dp]>

// CHECK: stg.weight "base" rows 1 frozen : !stg.tensor<[D, F], bf16>
%base = stg.weight "base" rows 1 frozen : !stg.tensor<[D, F], bf16>

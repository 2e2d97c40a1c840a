// What is gathered are shards over the same axes.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.unshard`: one result per operand
%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
dist.unshard (%a) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> ()

// -----

// CHECK: error[E0709]: `dist.unshard`: !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]> becomes !stg.tensor<[D, F/tp], bf16>, not !stg.tensor<[D, F/tp], fp16>
%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
%w = dist.unshard (%a) over [dp] in "bf16" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> !stg.tensor<[D, F/tp], fp16>

// -----

// CHECK: error[E0709]: `dist.unshard`: !stg.tensor<[D, F/tp], bf16> is not a shard over [dp]
%a = "test.op"() : () -> !stg.tensor<[D, F/tp], bf16>
%w = dist.unshard (%a) over [dp] in "bf16" : (!stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[D, F/tp], bf16>

// -----

// CHECK: error[E0709]: `dist.unshard`: !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]> is not a shard over [tp]
%a = "test.op"() : () -> !dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>
%w = dist.unshard (%a) over [tp] in "bf16" : (!dist.shard<!stg.tensor<[D, F/tp], fp32> over [dp]>) -> !stg.tensor<[D, F/tp], bf16>

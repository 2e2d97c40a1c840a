// What is summed over an axis is partial over it.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.reduce_shard`: !stg.tensor<[D, F/tp], bf16> is not partial over [dp]
%a = "test.op"() : () -> !stg.tensor<[D, F/tp], bf16>
%g = dist.reduce_shard (%a) over [dp] in "fp32" : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>

// -----

// CHECK: error[E0709]: `dist.reduce_shard`: !stg.tensor<[D, F/tp], bf16, partial [dp]> becomes !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>, not !dist.shard<!stg.tensor<[D, F/tp], fp8> over [dp]>
%a = "test.op"() : () -> !stg.tensor<[D, F/tp], bf16, partial [dp]>
%g = dist.reduce_shard (%a) over [dp] in "fp32" : (!stg.tensor<[D, F/tp], bf16, partial [dp]>) -> !dist.shard<!stg.tensor<[D, F/tp], fp8> over [dp]>

// All ranks of a pool have its number, and all pools take part.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_reduce_pools`: <[D], fp32> is no number of a pool
%n = "test.op"() : () -> !stg.tensor<[D], fp32>
%a = dist.all_reduce_pools 2 %n among 6 over [all_pools] : !stg.tensor<[D], fp32> -> !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `dist.all_reduce_pools`: <[], fp32, partial [dp]> is no number of a pool
%n = "test.op"() : () -> !stg.tensor<[], fp32, partial [dp]>
%a = dist.all_reduce_pools 2 %n among 6 over [all_pools] : !stg.tensor<[], fp32, partial [dp]> -> !stg.tensor<[], fp32, partial [dp]>

// -----

// CHECK: error[E0709]: `dist.all_reduce_pools`: it is over [all_pools]
%n = "test.op"() : () -> !stg.tensor<[], fp32>
%a = dist.all_reduce_pools 2 %n among 6 over [dp] : !stg.tensor<[], fp32> -> !stg.tensor<[], fp32>

// -----

// CHECK: error[E0709]: `dist.all_reduce_pools`: <[], fp32> does not become <[], bf16>
%n = "test.op"() : () -> !stg.tensor<[], fp32>
%a = dist.all_reduce_pools 2 %n among 6 over [all_pools] : !stg.tensor<[], fp32> -> !stg.tensor<[], bf16>

// -----

// CHECK: error[E0709]: `dist.all_reduce_pools`: some numbers, among several ranks
%n = "test.op"() : () -> !stg.tensor<[], fp32>
%a = dist.all_reduce_pools 2 %n among 1 over [all_pools] : !stg.tensor<[], fp32> -> !stg.tensor<[], fp32>

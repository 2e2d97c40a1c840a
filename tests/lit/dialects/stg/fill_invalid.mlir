// The cache has the shape of what is written.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.fill`: <[B, C, E], bf16> does not become <[B, C, H], bf16>
%k = stg.cache "k" : !stg.tensor<[B, C, E], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, C, H], bf16>
%all = stg.fill %k, %x : (!stg.tensor<[B, C, E], bf16>, !stg.tensor<[B, C, H], bf16>) -> !stg.tensor<[B, C, H], bf16>

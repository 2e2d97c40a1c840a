// A reshard changes neither dims nor dtype, and makes no sum that there was not.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.reshard`: <[B, D], bf16> does not become <[D, B], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%y = dist.reshard %x : !stg.tensor<[B, D], bf16> -> !stg.tensor<[D, B], bf16>

// -----

// CHECK: error[E0709]: `dist.reshard`: <[D], bf16> does not become <[D], fp32>
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = dist.reshard %x : !stg.tensor<[D], bf16> -> !stg.tensor<[D], fp32>

// -----

// CHECK: error[E0709]: `dist.reshard`: nothing becomes partial: <[D], bf16> to <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = dist.reshard %x : !stg.tensor<[D], bf16> -> !stg.tensor<[D], bf16, partial [tp]>

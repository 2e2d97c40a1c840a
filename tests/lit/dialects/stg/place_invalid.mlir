// An override changes neither dims nor dtype.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.place`: <[B, S], bf16> does not become <[S, B], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, S], bf16>
%y = stg.place %x [S] over [tp] : (!stg.tensor<[B, S], bf16>) -> !stg.tensor<[S, B], bf16>

// -----

// CHECK: error[E0709]: `stg.place`: <[B, S], bf16> does not become <[B, S], fp32>
%x = "test.op"() : () -> !stg.tensor<[B, S], bf16>
%y = stg.place %x [S] over [tp] : (!stg.tensor<[B, S], bf16>) -> !stg.tensor<[B, S], fp32>

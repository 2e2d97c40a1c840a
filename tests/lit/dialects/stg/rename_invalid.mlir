// A renaming gives its dims the names that it says, and keeps how they are split.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.rename`: <[B, S], bf16> does not become <[B, U], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, S], bf16>
%t = stg.rename %k [S] to [T] : (!stg.tensor<[B, S], bf16>) -> !stg.tensor<[B, U], bf16>

// -----

// CHECK: error[E0709]: `stg.rename`: the result is <[B, T], bf16>, but its operands make it <[B, T/cp], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, S/cp], bf16>
%t = stg.rename %k [S] to [T] : (!stg.tensor<[B, S/cp], bf16>) -> !stg.tensor<[B, T], bf16>

// -----

// CHECK: error[E0709]: `stg.rename`: 2 dims do not get 1 names
%k = "test.op"() : () -> !stg.tensor<[B, S], bf16>
%t = stg.rename %k [B, S] to [T] : (!stg.tensor<[B, S], bf16>) -> !stg.tensor<[B, T], bf16>

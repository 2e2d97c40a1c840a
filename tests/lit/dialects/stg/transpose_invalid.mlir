// A transposed tensor has the same dims.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.transpose`: the result is <[D, B], bf16>, but its operands make it <[D/tp, B], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, D/tp], bf16>
%y = stg.transpose %x : (!stg.tensor<[B, D/tp], bf16>) -> !stg.tensor<[D, B], bf16>

// -----

// CHECK: error[E0709]: `stg.transpose`: <[B, D], bf16> does not become <[D, S], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%y = stg.transpose %x : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[D, S], bf16>

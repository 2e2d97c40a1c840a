// A rotated tensor is spread as it was.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.rope`: the result is <[S, E], bf16>, but its operands make it <[S/cp, E], bf16>
%x = "test.op"() : () -> !stg.tensor<[S/cp, E], bf16>
%y = stg.rope %x : (!stg.tensor<[S/cp, E], bf16>) -> !stg.tensor<[S, E], bf16>

// Nothing but the dim of positions changes.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.last_positions`: <[B, S, D], bf16> does not become <[B, S, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, S, D], bf16>
%last = stg.last_positions %x over "S" to "sequences" : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B, S, D], bf16>

// What splits the heads of one granularity splits those of the other.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.sum_heads`: the result is <[B, K], bf16>, but its operands make it <[B, K/tp], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, H/tp], bf16>
%h = stg.sum_heads %k "H" to "K" : (!stg.tensor<[B, H/tp], bf16>) -> !stg.tensor<[B, K], bf16>

// -----

// CHECK: error[E0709]: `stg.sum_heads`: <[B, H], bf16> does not become <[B, F], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, H], bf16>
%h = stg.sum_heads %k "H" to "K" : (!stg.tensor<[B, H], bf16>) -> !stg.tensor<[B, F], bf16>

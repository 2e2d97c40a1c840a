// What splits the heads of one granularity splits those of the other.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.repeat_heads`: the result is <[B, H], bf16>, but its operands make it <[B, H/tp], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, K/tp], bf16>
%h = stg.repeat_heads %k "K" to "H" : (!stg.tensor<[B, K/tp], bf16>) -> !stg.tensor<[B, H], bf16>

// -----

// CHECK: error[E0709]: `stg.repeat_heads`: <[B, K], bf16> does not become <[B, F], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, K], bf16>
%h = stg.repeat_heads %k "K" to "H" : (!stg.tensor<[B, K], bf16>) -> !stg.tensor<[B, F], bf16>

// -----

// CHECK: error[E0709]: `stg.repeat_heads`: the result is <[B, H/kv], bf16>, but its operands make it <[B, H/(kv*r)], bf16>
%k = "test.op"() : () -> !stg.tensor<[B, K/kv], bf16>
%h = stg.repeat_heads %k "K" to "H" copies [r] : (!stg.tensor<[B, K/kv], bf16>) -> !stg.tensor<[B, H/kv], bf16>

// A sink for each head, and a sum over all queries.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.attention_sinks_grad`: the result is <[H], bf16>, but its operands make it <[H], bf16, partial [dp]>
%dy, %l, %s = "test.op"() : () -> (!stg.tensor<[B/dp, S, H, E], bf16>, !stg.tensor<[B/dp, S, H], fp32>, !stg.tensor<[H], bf16>)
%ds = stg.attention_sinks_grad %dy, %dy, %l, %s : (!stg.tensor<[B/dp, S, H, E], bf16>, !stg.tensor<[B/dp, S, H, E], bf16>, !stg.tensor<[B/dp, S, H], fp32>, !stg.tensor<[H], bf16>) -> !stg.tensor<[H], bf16>

// -----

// CHECK: error[E0709]: `stg.attention_sinks_grad`: <[B, S, H, E], bf16> does not become <[E], bf16>
%dy, %l, %s = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], fp32>, !stg.tensor<[E], bf16>)
%ds = stg.attention_sinks_grad %dy, %dy, %l, %s : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], fp32>, !stg.tensor<[E], bf16>) -> !stg.tensor<[E], bf16>

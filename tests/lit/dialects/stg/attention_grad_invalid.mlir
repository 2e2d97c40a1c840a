// The gradients of keys and values are partial over what splits the queries.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.attention_grad`: the result is <[S, H, E], bf16>, but its operands make it <[S, H, E], bf16, partial [cp]>
%q, %k, %l = "test.op"() : () -> (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)
%dq, %dk, %dv = stg.attention_grad %q, %q, %k, %k, %q, %l count "full"
  : (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)
  -> (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>)

// A delta rule's gradients have the shapes of its operands; dy has that of v.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.gated_delta_rule_grad`: dy is <[S, H, F], bf16>, v <[S, H, G], bf16>
%dy, %q, %v, %t = "test.op"() : () -> (!stg.tensor<[S, H, F], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>)
%dq, %dk, %dv, %dd, %db = stg.gated_delta_rule_grad %dy, %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[S, H, F], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>) -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>)

// -----

// CHECK: error[E0709]: `stg.gated_delta_rule_grad`: the result is <[S, K, E], bf16>, but its operands make it <[S, K, E], bf16, partial [tp]>
%q, %v, %t = "test.op"() : () -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G/tp], bf16>, !stg.tensor<[S, H], bf16>)
%dq, %dk, %dv, %dd, %db = stg.gated_delta_rule_grad %v, %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[S, H, G/tp], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G/tp], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>) -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G/tp], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>)

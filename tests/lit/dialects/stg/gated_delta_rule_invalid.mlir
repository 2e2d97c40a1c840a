// Operands of a delta rule are over its sequence, which is whole, and its heads; keys are whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.gated_delta_rule`: <[S, H], bf16> does not end in sequence, heads, width
%q, %v, %t = "test.op"() : () -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>)
%y = stg.gated_delta_rule %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>) -> !stg.tensor<[S, H], bf16>

// -----

// CHECK: error[E0709]: `stg.gated_delta_rule`: `beta` is <[S], bf16>, not over [S, H]
%q, %v, %t, %b = "test.op"() : () -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S], bf16>)
%y = stg.gated_delta_rule %q, %q, %v, %t, %b chunk "Q" : (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S], bf16>) -> !stg.tensor<[S, H, G], bf16>

// -----

// CHECK: error[E0709]: `stg.gated_delta_rule`: q is <[S, K, E], bf16>, k <[S, H, E], bf16>, not over [S], heads and width
%q, %k, %v, %t = "test.op"() : () -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>)
%y = stg.gated_delta_rule %q, %k, %v, %t, %t chunk "Q" : (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>) -> !stg.tensor<[S, H, G], bf16>

// -----

// CHECK: error[E0709]: `stg.gated_delta_rule`: each device needs all of `E` in <[S, K, E/tp], bf16>
%q, %v, %t = "test.op"() : () -> (!stg.tensor<[S, K, E/tp], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>)
%y = stg.gated_delta_rule %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[S, K, E/tp], bf16>, !stg.tensor<[S, K, E/tp], bf16>, !stg.tensor<[S, H, G], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>) -> !stg.tensor<[S, H, G], bf16>

// -----

// CHECK: error[E0709]: `stg.gated_delta_rule`: operands disagree about `H`: split over [] and over [tp]
%q, %v, %t = "test.op"() : () -> (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H/tp, G], bf16>, !stg.tensor<[S, H/tp], bf16>)
%y = stg.gated_delta_rule %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, H/tp, G], bf16>, !stg.tensor<[S, H/tp], bf16>, !stg.tensor<[S, H/tp], bf16>) -> !stg.tensor<[S, H/tp, G], bf16>

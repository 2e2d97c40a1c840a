// The gradients of a gated delta net: what all parts of a value share has terms on each device.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%q, %v, %t = "test.op"() : () -> (!stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, H], fp32>)

// CHECK: %dq, %dk, %dv, %ddecay, %dbeta = stg.gated_delta_rule_grad %v, %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, H], fp32>, !stg.tensor<[B, S, H], fp32>) -> (!stg.tensor<[B, S, K, E], bf16, partial [tp]>, !stg.tensor<[B, S, K, E], bf16, partial [tp]>, !stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, H], fp32, partial [tp]>, !stg.tensor<[B, S, H], fp32, partial [tp]>)
%dq, %dk, %dv, %ddecay, %dbeta = stg.gated_delta_rule_grad %v, %q, %q, %v, %t, %t chunk "Q"
  : (!stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, H], fp32>, !stg.tensor<[B, S, H], fp32>) -> (!stg.tensor<[B, S, K, E], bf16, partial [tp]>, !stg.tensor<[B, S, K, E], bf16, partial [tp]>, !stg.tensor<[B, S, H, G/tp], bf16>, !stg.tensor<[B, S, H], fp32, partial [tp]>, !stg.tensor<[B, S, H], fp32, partial [tp]>)

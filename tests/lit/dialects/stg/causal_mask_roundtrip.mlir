// Scores of keys after their query become -inf; their gradients become zero, which is linear.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%s, %p = "test.op"() : () -> (!stg.tensor<[B, H/tp, S, T], bf16>, !stg.tensor<[S, T], bf16, partial [tp]>)

// CHECK: %m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[B, H/tp, S, T], bf16>) -> !stg.tensor<[B, H/tp, S, T], bf16>
%m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[B, H/tp, S, T], bf16>) -> !stg.tensor<[B, H/tp, S, T], bf16>

// CHECK: %z = stg.causal_mask zero %p query "S" key "T" : (!stg.tensor<[S, T], bf16, partial [tp]>) -> !stg.tensor<[S, T], bf16, partial [tp]>
%z = stg.causal_mask zero %p query "S" key "T"
  : (!stg.tensor<[S, T], bf16, partial [tp]>) -> !stg.tensor<[S, T], bf16, partial [tp]>

// Scores of keys after their query become -inf.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%s = "test.op"() : () -> !stg.tensor<[B, H/tp, S, T], bf16>

// CHECK: %m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[B, H/tp, S, T], bf16>) -> !stg.tensor<[B, H/tp, S, T], bf16>
%m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[B, H/tp, S, T], bf16>) -> !stg.tensor<[B, H/tp, S, T], bf16>

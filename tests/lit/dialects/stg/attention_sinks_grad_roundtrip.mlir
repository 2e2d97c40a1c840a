// The gradient of sinks is partial over what splits batch and queries.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %o, %l, %s = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], bf16>)

// CHECK: %ds = stg.attention_sinks_grad %dy, %o, %l, %s : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], bf16>) -> !stg.tensor<[H/tp], bf16, partial [dp]>
%ds = stg.attention_sinks_grad %dy, %o, %l, %s
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], bf16>) -> !stg.tensor<[H/tp], bf16, partial [dp]>

// The gradients of keys and values sum over queries: partial over what splits those.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %q, %k, %v, %o, %l = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)

// CHECK: %dq, %dk, %dv = stg.attention_grad %dy, %q, %k, %v, %o, %l causal count "causal" : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, K, E], bf16, partial [cp]>, !stg.tensor<[B, S, K, E], bf16, partial [cp]>)
%dq, %dk, %dv = stg.attention_grad %dy, %q, %k, %v, %o, %l causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, K, E], bf16, partial [cp]>, !stg.tensor<[B, S, K, E], bf16, partial [cp]>)

// CHECK: stg.attention_grad {{.*}} copies [r] :
%c, %d, %s = "test.op"() : () -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>, !stg.tensor<[B, S, H/(kv*r)], fp32>)
%x, %y, %z = stg.attention_grad %c, %c, %d, %d, %c, %s causal count "causal" copies [r]
  : (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>, !stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, H/(kv*r)], fp32>) -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16, partial [r]>, !stg.tensor<[B, S, K/kv, E], bf16, partial [r]>)

// CHECK: %{{.*}} = stg.attention_grad {{.*}} bias %bias count "causal" scale "1" alibi : {{.*}} !stg.tensor<[S/cp, T, H], bf16, partial [dp]>)
%e, %f, %g, %bias = "test.op"() : () -> (!stg.tensor<[B/dp, S/cp, H, E], bf16>, !stg.tensor<[B/dp, T, H, E], bf16>, !stg.tensor<[B/dp, S/cp, H], fp32>, !stg.tensor<[S/cp, T, H], bf16>)
%db:4 = stg.attention_grad %e, %e, %f, %f, %e, %g bias %bias count "causal" scale "1" alibi
  : (!stg.tensor<[B/dp, S/cp, H, E], bf16>, !stg.tensor<[B/dp, S/cp, H, E], bf16>, !stg.tensor<[B/dp, T, H, E], bf16>, !stg.tensor<[B/dp, T, H, E], bf16>, !stg.tensor<[B/dp, S/cp, H, E], bf16>, !stg.tensor<[B/dp, S/cp, H], fp32>, !stg.tensor<[S/cp, T, H], bf16>) -> (!stg.tensor<[B/dp, S/cp, H, E], bf16>, !stg.tensor<[B/dp, T, H, E], bf16, partial [cp]>, !stg.tensor<[B/dp, T, H, E], bf16, partial [cp]>, !stg.tensor<[S/cp, T, H], bf16, partial [dp]>)

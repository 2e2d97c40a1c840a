// All heads share what is attended to: latent vectors, and keys that are rotated by position.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%near, %far, %latents, %rotated = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, C], bf16>, !stg.tensor<[B/dp, S, H/tp, R], bf16>, !stg.tensor<[B/dp, T, C], bf16>, !stg.tensor<[B/dp, T, R], bf16>)

// CHECK: %y, %lse = stg.latent_attention %near, %far, %latents, %rotated causal pairs "T" : (
%y, %lse = stg.latent_attention %near, %far, %latents, %rotated causal pairs "T" : (!stg.tensor<[B/dp, S, H/tp, C], bf16>, !stg.tensor<[B/dp, S, H/tp, R], bf16>, !stg.tensor<[B/dp, T, C], bf16>, !stg.tensor<[B/dp, T, R], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, C], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// Keys that are rotated are of the same positions as the latent vectors.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.latent_attention`: <[B, S, H, C], bf16>, <[B, S, H, R], bf16>, <[B, T, C], bf16>, <[B, S, R], bf16> do not fit together
%near, %far, %latents, %rotated = "test.op"() : () -> (!stg.tensor<[B, S, H, C], bf16>, !stg.tensor<[B, S, H, R], bf16>, !stg.tensor<[B, T, C], bf16>, !stg.tensor<[B, S, R], bf16>)
%y, %lse = stg.latent_attention %near, %far, %latents, %rotated causal : (!stg.tensor<[B, S, H, C], bf16>, !stg.tensor<[B, S, H, R], bf16>, !stg.tensor<[B, T, C], bf16>, !stg.tensor<[B, S, R], bf16>) -> (!stg.tensor<[B, S, H, C], bf16>, !stg.tensor<[B, S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.latent_attention`: operands disagree about `B`: split over [dp] and over []
%near, %far, %latents, %rotated = "test.op"() : () -> (!stg.tensor<[B/dp, S, H, C], bf16>, !stg.tensor<[B/dp, S, H, R], bf16>, !stg.tensor<[B, T, C], bf16>, !stg.tensor<[B/dp, T, R], bf16>)
%y, %lse = stg.latent_attention %near, %far, %latents, %rotated causal : (!stg.tensor<[B/dp, S, H, C], bf16>, !stg.tensor<[B/dp, S, H, R], bf16>, !stg.tensor<[B, T, C], bf16>, !stg.tensor<[B/dp, T, R], bf16>) -> (!stg.tensor<[B/dp, S, H, C], bf16>, !stg.tensor<[B/dp, S, H], fp32>)

// A kind of sequences is three sizes.
// RUN: not stagec-opt %s 2>&1 | filecheck %s

%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>)

// CHECK: error[E0708]: {{.*}}expected a count, new positions, and positions in all
%y, %lse = stg.attention %q, %k, %v causal count "causal" pairs "P" requests <["4", "2048"]> : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>) -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], fp32>)

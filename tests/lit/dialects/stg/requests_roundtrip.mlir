// Where sequences of a row differ in length, attention says of each kind how many there are, their new positions, and all that these attend to.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>)

// CHECK: causal count "causal" pairs "P" requests <["4", "2048", "2048"], ["128", "1", "C + 1"]> : (
%y, %lse = stg.attention %q, %k, %v causal count "causal" pairs "P" requests <["4", "2048", "2048"], ["128", "1", "C + 1"]> : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>, !stg.tensor<[B, T, H, E], bf16>) -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], fp32>)

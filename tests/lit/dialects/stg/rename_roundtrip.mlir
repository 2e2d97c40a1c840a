// Dims under other names; what splits them stays.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = "test.op"() : () -> !stg.tensor<[B/dp, S/cp, K, E], bf16, partial [tp]>

// CHECK: %t = stg.rename %k [S, E] to [T, G] : (!stg.tensor<[B/dp, S/cp, K, E], bf16, partial [tp]>) -> !stg.tensor<[B/dp, T/cp, K, G], bf16, partial [tp]>
%t = stg.rename %k [S, E] to [T, G]
  : (!stg.tensor<[B/dp, S/cp, K, E], bf16, partial [tp]>) -> !stg.tensor<[B/dp, T/cp, K, G], bf16, partial [tp]>

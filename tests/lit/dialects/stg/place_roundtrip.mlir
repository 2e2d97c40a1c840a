// The same value, spread for its readers otherwise than by the rules.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S], bf16>

// CHECK: %y = stg.place %x [S] over [tp] : (!stg.tensor<[B/dp, S], bf16>) -> !stg.tensor<[B/dp, S/tp], bf16>
%y = stg.place %x [S] over [tp] : (!stg.tensor<[B/dp, S], bf16>) -> !stg.tensor<[B/dp, S/tp], bf16>

// CHECK: %z = stg.place %x [B, S] over [] : (!stg.tensor<[B/dp, S], bf16>) -> !stg.tensor<[B, S], bf16>
%z = stg.place %x [B, S] over [] : (!stg.tensor<[B/dp, S], bf16>) -> !stg.tensor<[B, S], bf16>

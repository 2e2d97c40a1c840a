// The gradient of a table: partial over what splits the numbers.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%t, %dy = "test.op"() : () -> (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S, D], bf16>)

// CHECK: %dw = stg.embedding_grad %t, %dy : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[V/tp, D], bf16, partial [dp]>
%dw = stg.embedding_grad %t, %dy
  : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[V/tp, D], bf16, partial [dp]>

// Rows of a table; over a split vocabulary the result is partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%t, %whole, %part = "test.op"() : () -> (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V, D], bf16>, !stg.tensor<[V/tp, D], bf16>)

// CHECK: %x = stg.embedding %t, %whole : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>
%x = stg.embedding %t, %whole
  : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>

// CHECK: %p = stg.embedding %t, %part : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V/tp, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%p = stg.embedding %t, %part
  : (!stg.tensor<[B/dp, S], i32>, !stg.tensor<[V/tp, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

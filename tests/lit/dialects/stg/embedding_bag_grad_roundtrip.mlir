// The gradient of tables: partial over what splits the samples, not over what splits tables or their rows.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%i, %dy = "test.op"() : () -> (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[B/dp, T/tp, E], bf16>)

// CHECK: %dw = stg.embedding_bag_grad %i, %dy over "J" : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[B/dp, T/tp, E], bf16>) -> !stg.tensor<[T/tp, R/ep, E], bf16, partial [dp]>
%dw = stg.embedding_bag_grad %i, %dy over "J"
  : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[B/dp, T/tp, E], bf16>) -> !stg.tensor<[T/tp, R/ep, E], bf16, partial [dp]>

%n, %dz = "test.op"() : () -> (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[B/dp, T, E], bf16>)

// CHECK: %dv = stg.embedding_bag_grad %n, %dz over "N" to "T" : (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[B/dp, T, E], bf16>) -> !stg.tensor<[R, E], bf16, partial [dp]>
%dv = stg.embedding_bag_grad %n, %dz over "N" to "T"
  : (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[B/dp, T, E], bf16>) -> !stg.tensor<[R, E], bf16, partial [dp]>

// Rows added up: of tables that are split as their numbers are, of split rows in part, and in bags of several lengths.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%i, %w, %v = "test.op"() : () -> (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[T/tp, R, E], bf16>, !stg.tensor<[T/tp, R/ep, E], bf16>)

// CHECK: %x = stg.embedding_bag %i, %w over "J" : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[T/tp, R, E], bf16>) -> !stg.tensor<[B/dp, T/tp, E], bf16>
%x = stg.embedding_bag %i, %w over "J"
  : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[T/tp, R, E], bf16>) -> !stg.tensor<[B/dp, T/tp, E], bf16>

// CHECK: %p = stg.embedding_bag %i, %v over "J" : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[T/tp, R/ep, E], bf16>) -> !stg.tensor<[B/dp, T/tp, E], bf16, partial [ep]>
%p = stg.embedding_bag %i, %v over "J"
  : (!stg.tensor<[B/dp, T/tp, J], i32>, !stg.tensor<[T/tp, R/ep, E], bf16>) -> !stg.tensor<[B/dp, T/tp, E], bf16, partial [ep]>

%n, %t = "test.op"() : () -> (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[R, E/tp], bf16>)

// CHECK: %y = stg.embedding_bag %n, %t over "N" to "T" : (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[R, E/tp], bf16>) -> !stg.tensor<[B/dp, T, E/tp], bf16>
%y = stg.embedding_bag %n, %t over "N" to "T"
  : (!stg.tensor<[B/dp, N], i32>, !stg.tensor<[R, E/tp], bf16>) -> !stg.tensor<[B/dp, T, E/tp], bf16>

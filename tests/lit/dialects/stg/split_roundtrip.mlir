// A dim cut into parts: a result for each.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>

// CHECK: %n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>) -> (!stg.tensor<[B/dp, S, H/tp, N], bf16, partial [cp]>, !stg.tensor<[B/dp, S, H/tp, R], bf16, partial [cp]>)
%n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>)
  -> (!stg.tensor<[B/dp, S, H/tp, N], bf16, partial [cp]>, !stg.tensor<[B/dp, S, H/tp, R], bf16, partial [cp]>)

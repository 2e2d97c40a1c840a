// A dim cut into parts: a result for each.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>

// CHECK: %n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>) -> (!stg.tensor<[B/dp, S, H/tp, N], bf16, partial [cp]>, !stg.tensor<[B/dp, S, H/tp, R], bf16, partial [cp]>)
%n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[B/dp, S, H/tp, E], bf16, partial [cp]>)
  -> (!stg.tensor<[B/dp, S, H/tp, N], bf16, partial [cp]>, !stg.tensor<[B/dp, S, H/tp, R], bf16, partial [cp]>)

// Parts that are split as the whole is: each device has its part of each.
// CHECK: stg.split %{{.*}} over "G" to [F, U] : (!stg.tensor<[B, G/tp], bf16>) -> (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B, U/tp], bf16>)
%fused = "test.op"() : () -> !stg.tensor<[B, G/tp], bf16>
%gate, %up = stg.split %fused over "G" to [F, U] : (!stg.tensor<[B, G/tp], bf16>) -> (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[B, U/tp], bf16>)

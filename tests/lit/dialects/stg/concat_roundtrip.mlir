// Tensors side by side; one that lacks a dim of the others is repeated along it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%n, %r = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, N], bf16>, !stg.tensor<[B/dp, S, R], bf16>)

// CHECK: %k = stg.concat %n, %r over [N, R] to "E" : (!stg.tensor<[B/dp, S, H/tp, N], bf16>, !stg.tensor<[B/dp, S, R], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%k = stg.concat %n, %r over [N, R] to "E"
  : (!stg.tensor<[B/dp, S, H/tp, N], bf16>, !stg.tensor<[B/dp, S, R], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// Terms of sums over the same axes make terms of the sum.
%a, %b = "test.op"() : () -> (!stg.tensor<[S, D], bf16, partial [tp]>, !stg.tensor<[S, D], bf16, partial [tp]>)

// CHECK: %c = stg.concat %a, %b over [D, D] to "E" : ({{.*}}) -> !stg.tensor<[S, E], bf16, partial [tp]>
%c = stg.concat %a, %b over [D, D] to "E"
  : (!stg.tensor<[S, D], bf16, partial [tp]>, !stg.tensor<[S, D], bf16, partial [tp]>) -> !stg.tensor<[S, E], bf16, partial [tp]>

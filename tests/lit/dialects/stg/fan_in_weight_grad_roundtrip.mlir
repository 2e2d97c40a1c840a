// Products with what experts made are partial where the width of a token is split.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%d, %y, %g = "test.op"() : () -> (!stg.tensor<[Q/ep, V, D/tp], bf16>, !stg.tensor<[X/ep, T, D/tp], bf16>, !stg.tensor<[B/ep, A], bf16>)

// CHECK: %w = stg.fan_in_weight_grad %d, %y for %g : (!stg.tensor<[Q/ep, V, D/tp], bf16>, !stg.tensor<[X/ep, T, D/tp], bf16>, !stg.tensor<[B/ep, A], bf16>) -> !stg.tensor<[B/ep, A], bf16, partial [tp]>
%w = stg.fan_in_weight_grad %d, %y for %g
  : (!stg.tensor<[Q/ep, V, D/tp], bf16>, !stg.tensor<[X/ep, T, D/tp], bf16>, !stg.tensor<[B/ep, A], bf16>) -> !stg.tensor<[B/ep, A], bf16, partial [tp]>

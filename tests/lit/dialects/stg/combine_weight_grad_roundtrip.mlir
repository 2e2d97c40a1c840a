// Over a split width the products of dy with what experts made are partial, and where what they made is terms of a sum.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], bf16, partial [tp]>
%dg = stg.combine_weight_grad %dy, %y by %i
  : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], bf16, partial [tp]>

%w, %z, %j = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[X/ep, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>)

// CHECK: stg.combine_weight_grad %w, %z by %j : {{.*}} -> !stg.tensor<[B, A], bf16, partial [ep, tp]>
%dh = stg.combine_weight_grad %w, %z by %j
  : (!stg.tensor<[B, D], bf16>, !stg.tensor<[X/ep, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16, partial [ep, tp]>

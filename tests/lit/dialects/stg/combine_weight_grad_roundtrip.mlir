// Over a split width the products of dy with what experts made are partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], bf16, partial [tp]>
%dg = stg.combine_weight_grad %dy, %y by %i
  : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[X, C/dp, D/tp], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], bf16, partial [tp]>

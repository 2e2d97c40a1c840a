// The gradient of the chosen scores; it is linear in that of the weights.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dg, %g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, A], bf16, partial [tp]>, !stg.tensor<[B/dp, A], bf16>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B/dp, A], bf16, partial [tp]>, !stg.tensor<[B/dp, A], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, X], bf16, partial [tp]>
%ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B/dp, A], bf16, partial [tp]>, !stg.tensor<[B/dp, A], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, X], bf16, partial [tp]>

// What experts made, added up for each token; linear in it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%y, %g, %i = "test.op"() : () -> (!stg.tensor<[X, C/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, A], bf16>, !stg.tensor<[B/dp, S, A], i32>)

// CHECK: %o = stg.combine %y by %i weights %g : (!stg.tensor<[X, C/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, A], i32>, !stg.tensor<[B/dp, S, A], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%o = stg.combine %y by %i weights %g
  : (!stg.tensor<[X, C/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, A], i32>, !stg.tensor<[B/dp, S, A], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

// CHECK: %p = stg.combine %y by %i : (!stg.tensor<[X, C/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, A], i32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%p = stg.combine %y by %i
  : (!stg.tensor<[X, C/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, S, A], i32>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

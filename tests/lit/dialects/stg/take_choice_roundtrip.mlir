// Of a row of all experts what is of the chosen ones: a term of a sum stays one.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%w, %i = "test.op"() : () -> (!stg.tensor<[B/dp, X.all], fp32, partial [tp]>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %g = stg.take_choice %w by %i : (!stg.tensor<[B/dp, X.all], fp32, partial [tp]>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32, partial [tp]>
%g = stg.take_choice %w by %i : (!stg.tensor<[B/dp, X.all], fp32, partial [tp]>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32, partial [tp]>

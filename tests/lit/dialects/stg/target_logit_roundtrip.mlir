// The target's logit is a term of a sum over the devices that split the vocabulary.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%l, %t, %m = "test.op"() : () -> (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %p = stg.target_logit %l, %t, %m : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S], fp32, partial [tp]>
%p = stg.target_logit %l, %t, %m : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S], fp32, partial [tp]>

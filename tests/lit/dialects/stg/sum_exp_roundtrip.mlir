// The sum of exponentials is a term of a sum over the devices that split the vocabulary.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%l, %m = "test.op"() : () -> (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %s = stg.sum_exp %l, %m : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S], fp32, partial [tp]>
%s = stg.sum_exp %l, %m : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S], fp32, partial [tp]>

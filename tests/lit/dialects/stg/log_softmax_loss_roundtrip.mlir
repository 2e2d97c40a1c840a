// The loss is partial over what splits the targets; the log-probabilities are kept, spread as the logits.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, S, V/tp], fp32>, !stg.tensor<[B/dp, S], i32>)

// CHECK: %loss, %p = stg.log_softmax_loss %l, %t : (!stg.tensor<[B/dp, S, V/tp], fp32>, !stg.tensor<[B/dp, S], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S, V/tp], fp32>)
%loss, %p = stg.log_softmax_loss %l, %t
  : (!stg.tensor<[B/dp, S, V/tp], fp32>, !stg.tensor<[B/dp, S], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S, V/tp], fp32>)

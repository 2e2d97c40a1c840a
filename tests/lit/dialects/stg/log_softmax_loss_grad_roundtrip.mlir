// What a row of the gradient at the targets sums to is known: no collective over a split vocabulary.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dt, %p, %d = "test.op"() : () -> (!stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[], fp32>)

// CHECK: %dl = stg.log_softmax_loss_grad %dt, %p, %d : (!stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[], fp32>) -> !stg.tensor<[B/dp, V/tp], fp32>
%dl = stg.log_softmax_loss_grad %dt, %p, %d
  : (!stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[], fp32>) -> !stg.tensor<[B/dp, V/tp], fp32>

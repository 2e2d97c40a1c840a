// The gradient at the targets and the log-probabilities are spread alike.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `stg.log_softmax_loss_grad`: operands disagree about `V`: split over [tp] and over []
%dt, %p, %d = "test.op"() : () -> (!stg.tensor<[B, V/tp], fp32>, !stg.tensor<[B, V], fp32>, !stg.tensor<[], fp32>)
%dl = stg.log_softmax_loss_grad %dt, %p, %d
  : (!stg.tensor<[B, V/tp], fp32>, !stg.tensor<[B, V], fp32>, !stg.tensor<[], fp32>) -> !stg.tensor<[B, V/tp], fp32>

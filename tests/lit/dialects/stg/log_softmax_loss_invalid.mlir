// The loss of split targets is partial, and its operands agree about what splits them.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.log_softmax_loss`: the result is <[], fp32>, but its operands make it <[], fp32, partial [dp]>
%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, V], fp32>, !stg.tensor<[B/dp], i32>)
%loss, %p = stg.log_softmax_loss %l, %t
  : (!stg.tensor<[B/dp, V], fp32>, !stg.tensor<[B/dp], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, V], fp32>)

// -----

// CHECK: error[E0709]: `stg.log_softmax_loss`: operands disagree about `B`: split over [dp] and over []
%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, V], fp32>, !stg.tensor<[B], i32>)
%loss, %p = stg.log_softmax_loss %l, %t
  : (!stg.tensor<[B/dp, V], fp32>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, V], fp32>)

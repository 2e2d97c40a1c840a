// Over a split vocabulary the loss in two kernels takes the collectives of cross-entropy; what is kept is the log-probabilities.
// RUN: stagec-opt %s -p decompose-statistics | filecheck %s

%l, %t = "test.op"() : () -> (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>)

// CHECK:      dist.all_reduce "max"
// CHECK:      %[[LOSS:[^ ,]*]], %[[LSE:[^ ,]*]] = stg.loss_of_statistics
// CHECK:      %[[NARROW:[^ ]*]] = stg.cast %[[LSE]]
// CHECK:      %[[P:[^ ]*]] = stg.sub %l, %[[NARROW]]
// CHECK-SAME: -> !stg.tensor<[B, V/tp], bf16>
// CHECK-NOT:  stg.log_softmax_loss
// CHECK:      "test.op"(%[[LOSS]], %[[P]])
%loss, %p = stg.log_softmax_loss %l, %t
  : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], bf16>)
"test.op"(%loss, %p) : (!stg.tensor<[], fp32>, !stg.tensor<[B, V/tp], bf16>) -> ()

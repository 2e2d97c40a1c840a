// The gradient at the targets is as large as the log-probabilities.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%d, %p, %t = "test.op"() : () -> (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp], i32>)

// CHECK: %dt = stg.target_grad %d, %p, %t : (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp], i32>) -> !stg.tensor<[B/dp, V/tp], fp32>
%dt = stg.target_grad %d, %p, %t
  : (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, V/tp], fp32>, !stg.tensor<[B/dp], i32>) -> !stg.tensor<[B/dp, V/tp], fp32>

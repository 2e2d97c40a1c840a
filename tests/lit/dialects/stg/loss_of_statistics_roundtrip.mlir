// Loss and log-sum-exp from the three statistics.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%m, %p, %s = "test.op"() : () -> (!stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %loss, %lse = stg.loss_of_statistics %m, %p, %s : (!stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S], fp32>)
%loss, %lse = stg.loss_of_statistics %m, %p, %s
  : (!stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>, !stg.tensor<[B/dp, S], fp32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S], fp32>)

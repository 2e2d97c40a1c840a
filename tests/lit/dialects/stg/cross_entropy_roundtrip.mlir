// The loss is partial over what splits the targets; the log-sum-exp is kept.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>)

// CHECK: %loss, %lse = stg.cross_entropy %l, %t : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S], fp32>)
%loss, %lse = stg.cross_entropy %l, %t
  : (!stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp, S], fp32>)

// The loss of split targets is partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.cross_entropy`: the result is <[], fp32>, but its operands make it <[], fp32, partial [dp]>
%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, V], bf16>, !stg.tensor<[B/dp], i32>)
%loss, %lse = stg.cross_entropy %l, %t
  : (!stg.tensor<[B/dp, V], bf16>, !stg.tensor<[B/dp], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B/dp], fp32>)

// -----

// CHECK: error[E0709]: `stg.cross_entropy`: operands disagree about `B`: split over [dp] and over []
%l, %t = "test.op"() : () -> (!stg.tensor<[B/dp, V], bf16>, !stg.tensor<[B], i32>)
%loss, %lse = stg.cross_entropy %l, %t
  : (!stg.tensor<[B/dp, V], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32, partial [dp]>, !stg.tensor<[B/dp], fp32>)

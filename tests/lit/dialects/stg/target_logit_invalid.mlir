// Over a split vocabulary the target's logit is partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.target_logit`: the result is <[B], fp32>, but its operands make it <[B], fp32, partial [tp]>
%l, %t, %m = "test.op"() : () -> (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>)
%p = stg.target_logit %l, %t, %m
  : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], i32>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>

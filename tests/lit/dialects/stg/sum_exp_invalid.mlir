// Over a split vocabulary the sum of exponentials is partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.sum_exp`: the result is <[B], fp32>, but its operands make it <[B], fp32, partial [tp]>
%l, %m = "test.op"() : () -> (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], fp32>)
%s = stg.sum_exp %l, %m : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B], fp32>

// The statistics are summed before.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.loss_of_statistics`: it is not linear in operand 2, which is partial: <[B], fp32, partial [tp]>
%m, %s = "test.op"() : () -> (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32, partial [tp]>)
%loss, %lse = stg.loss_of_statistics %m, %m, %s
  : (!stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>, !stg.tensor<[B], fp32, partial [tp]>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)

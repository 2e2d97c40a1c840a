// A cast changes the dtype and nothing else.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.cast`: the result is <[B], fp32>, but its operands make it <[B], fp32, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[B], bf16, partial [tp]>
%y = stg.cast %x : (!stg.tensor<[B], bf16, partial [tp]>) -> !stg.tensor<[B], fp32>

// -----

// CHECK: error[E0709]: `stg.cast`: <[B, D], bf16> does not become <[D, B], fp32>
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%y = stg.cast %x : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[D, B], fp32>

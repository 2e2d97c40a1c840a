// What is quantized has a format with scales, and is no term of a sum.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.quantize`: !stg.tensor<[S], fp16> is in no format with scales
%x = "test.op"() : () -> !stg.tensor<[S], bf16>
%q = stg.quantize %x : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], fp16>

// -----

// CHECK: error[E0709]: `stg.quantize`: it is not linear in operand 0, which is partial: <[S], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[S], bf16, partial [tp]>
%q = stg.quantize %x : (!stg.tensor<[S], bf16, partial [tp]>) -> !stg.tensor<[S], fp8, partial [tp]>

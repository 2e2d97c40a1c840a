// A function has a name that is known, and takes no term of a sum unless it is linear.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.unary`: there is no function `swish`
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = stg.unary "swish" %x : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `stg.unary`: it is not linear in operand 0, which is partial: <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = stg.unary "exp" %x : (!stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[D], bf16>

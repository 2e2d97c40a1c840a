// The gradient of a function reads a whole value.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.unary_grad`: it is not linear in operand 1, which is partial: <[D], bf16, partial [tp]>
%dy, %x = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>)
%dx = stg.unary_grad "silu" %dy, %x : (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `stg.unary_grad`: there is no function `swish`
%dy, %x = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>)
%dx = stg.unary_grad "swish" %dy, %x : (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>

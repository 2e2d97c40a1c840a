// The gradient has the dims of x, and the maximum is whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.max_grad`: <[B, S], bf16> does not become <[B], bf16>
%dy, %x = "test.op"() : () -> (!stg.tensor<[B], bf16>, !stg.tensor<[B, S], bf16>)
%dx = stg.max_grad %dy, %x, %dy : (!stg.tensor<[B], bf16>, !stg.tensor<[B, S], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `stg.max_grad`: it is not linear in operand 2, which is partial: <[B], bf16, partial [tp]>
%dy, %x = "test.op"() : () -> (!stg.tensor<[B], bf16, partial [tp]>, !stg.tensor<[B, S], bf16>)
%dx = stg.max_grad %dy, %x, %dy : (!stg.tensor<[B], bf16, partial [tp]>, !stg.tensor<[B, S], bf16>, !stg.tensor<[B], bf16, partial [tp]>) -> !stg.tensor<[B, S], bf16, partial [tp]>

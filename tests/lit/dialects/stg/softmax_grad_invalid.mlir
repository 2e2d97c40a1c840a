// The probabilities are whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.softmax_grad`: it is not linear in operand 1, which is partial: <[T], bf16, partial [tp]>
%dy, %y = "test.op"() : () -> (!stg.tensor<[T], bf16>, !stg.tensor<[T], bf16, partial [tp]>)
%dx = stg.softmax_grad %dy, %y over [T] : (!stg.tensor<[T], bf16>, !stg.tensor<[T], bf16, partial [tp]>) -> !stg.tensor<[T], bf16>

// A softmax of a term of a sum is no term of a softmax.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.softmax`: it is not linear in operand 0, which is partial: <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = stg.softmax %x over [D] : (!stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[D], bf16>

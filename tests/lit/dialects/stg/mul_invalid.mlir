// The right operand of a product is not partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.mul`: it is not linear in operand 1, which is partial: <[D], bf16, partial [tp]>
%x, %p = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>)
%y = stg.mul %x, %p : (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `stg.mul`: operands disagree about `D`: split over [] and over [tp]
%x, %w = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D/tp], bf16>)
%y = stg.mul %x, %w : (!stg.tensor<[D], bf16>, !stg.tensor<[D/tp], bf16>) -> !stg.tensor<[D], bf16>

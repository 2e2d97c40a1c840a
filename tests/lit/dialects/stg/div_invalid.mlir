// The right operand of a quotient is not partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.div`: it is not linear in operand 1, which is partial: <[D], bf16, partial [tp]>
%x, %p = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>)
%y = stg.div %x, %p : (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `stg.div`: operands disagree about `D`: split over [] and over [tp]
%x, %w = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[D/tp], bf16>)
%y = stg.div %x, %w : (!stg.tensor<[D], bf16>, !stg.tensor<[D/tp], bf16>) -> !stg.tensor<[D], bf16>

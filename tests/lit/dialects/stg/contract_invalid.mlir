// A contraction sums over dims that both operands have, and keeps the others.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.contract`: not both operands have `S`
%x, %w = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F], bf16>)
%y = stg.contract %x, %w over [S]
  : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, D, F], bf16>

// -----

// CHECK: error[E0709]: `stg.contract`: the result has the dims that are not contracted
%x, %w = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F], bf16>)
%y = stg.contract %x, %w over [D]
  : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16>

// -----

// CHECK: error[E0709]: `stg.contract`: at most one operand is partial
%x, %w = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16, partial [tp]>)
%y = stg.contract %x, %w over [D]
  : (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16, partial [tp]>) -> !stg.tensor<[B, F], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.contract`: operands disagree about `D`: split over [tp] and over []
%x, %w = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D, F], bf16>)
%y = stg.contract %x, %w over [D]
  : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.contract`: the result is <[B, F], bf16>, but its operands make it <[B, F], bf16, partial [tp]>
%x, %w = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp, F], bf16>)
%y = stg.contract %x, %w over [D]
  : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[D/tp, F], bf16>) -> !stg.tensor<[B, F], bf16>

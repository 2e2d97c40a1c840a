// A term that is partial is not added to one that is not.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.add`: one term is partial over [tp], the other over []
%p, %x = "test.op"() : () -> (!stg.tensor<[D], bf16, partial [tp]>, !stg.tensor<[D], bf16>)
%y = stg.add %p, %x : (!stg.tensor<[D], bf16, partial [tp]>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.add`: operands disagree about `D`: split over [tp] and over []
%p, %x = "test.op"() : () -> (!stg.tensor<[D/tp], bf16>, !stg.tensor<[D], bf16>)
%y = stg.add %p, %x : (!stg.tensor<[D/tp], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D/tp], bf16>

// -----

// CHECK: error[E0709]: `stg.add`: the result is <[D, F], bf16>, but its operands make it <[D, F/tp], bf16>
%p, %x = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[F/tp], bf16>)
%y = stg.add %p, %x : (!stg.tensor<[D], bf16>, !stg.tensor<[F/tp], bf16>) -> !stg.tensor<[D, F], bf16>

// -----

// CHECK: error[E0709]: `stg.add`: <[D], bf16> is not added once to terms <[B, D], bf16>
%p, %x = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>)
%y = stg.add %p, %x once : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>

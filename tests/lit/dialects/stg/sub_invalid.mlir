// A partial term is not subtracted from one that is not.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.sub`: one term is partial over [tp], the other over []
%p, %x = "test.op"() : () -> (!stg.tensor<[D], bf16, partial [tp]>, !stg.tensor<[D], bf16>)
%y = stg.sub %p, %x : (!stg.tensor<[D], bf16, partial [tp]>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.sub`: operands disagree about `D`: split over [tp] and over []
%p, %x = "test.op"() : () -> (!stg.tensor<[D/tp], bf16>, !stg.tensor<[D], bf16>)
%y = stg.sub %p, %x : (!stg.tensor<[D/tp], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D/tp], bf16>

// -----

// CHECK: error[E0709]: `stg.sub`: the result is <[D, F], bf16>, but its operands make it <[D, F/tp], bf16>
%p, %x = "test.op"() : () -> (!stg.tensor<[D], bf16>, !stg.tensor<[F/tp], bf16>)
%y = stg.sub %p, %x : (!stg.tensor<[D], bf16>, !stg.tensor<[F/tp], bf16>) -> !stg.tensor<[D, F], bf16>

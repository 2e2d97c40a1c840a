// A filter is its width, then channels of what it goes along; the sequence is whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.causal_conv`: there is no dim `T` in <[B, S, D], bf16>
%x, %k = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[W, D], bf16>)
%y = stg.causal_conv %x, %k over "T" : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[W, D], bf16>) -> !stg.tensor<[B, S, D], bf16>

// -----

// CHECK: error[E0709]: `stg.causal_conv`: <[D, W], bf16> is not a filter along `S` of <[B, S, D], bf16>
%x, %k = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, W], bf16>)
%y = stg.causal_conv %x, %k over "S" : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[D, W], bf16>) -> !stg.tensor<[B, S, D], bf16>

// -----

// CHECK: error[E0709]: `stg.causal_conv`: each device needs all of `S` in <[B, S/cp, D], bf16>
%x, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, D], bf16>, !stg.tensor<[W, D], bf16>)
%y = stg.causal_conv %x, %k over "S" : (!stg.tensor<[B, S/cp, D], bf16>, !stg.tensor<[W, D], bf16>) -> !stg.tensor<[B, S/cp, D], bf16>

// -----

// CHECK: error[E0709]: `stg.causal_conv`: operands disagree about `D`: split over [] and over [tp]
%x, %k = "test.op"() : () -> (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[W, D/tp], bf16>)
%y = stg.causal_conv %x, %k over "S" : (!stg.tensor<[B, S, D], bf16>, !stg.tensor<[W, D/tp], bf16>) -> !stg.tensor<[B, S, D], bf16>

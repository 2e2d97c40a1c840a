// Tokens come back as they went; partial terms stay partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.combine`: tokens are split over [dp], experts' tokens over [ep]
%y, %i = "test.op"() : () -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/dp, A], i32>)
%o = stg.combine %y by %i : (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, D], bf16>

// -----

// CHECK: error[E0709]: `stg.combine`: tokens <[B, D], bf16> do not go to experts as <[X, D], bf16>
%y, %i = "test.op"() : () -> (!stg.tensor<[X, D], bf16>, !stg.tensor<[B, A], i32>)
%o = stg.combine %y by %i : (!stg.tensor<[X, D], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `stg.combine`: experts <[S, A], i32> are not those of tokens <[B, D], bf16>
%y, %i = "test.op"() : () -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[S, A], i32>)
%o = stg.combine %y by %i : (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[S, A], i32>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `stg.combine`: it is not linear in operand 2, which is partial: <[B, A], bf16, partial [tp]>
%y, %i, %g = "test.op"() : () -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], bf16, partial [tp]>)
%o = stg.combine %y by %i weights %g : (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], bf16, partial [tp]>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `stg.combine`: what experts made is <[X, C, D], bf16, partial [tp]>, the sum <[B, D], bf16>
%y, %i = "test.op"() : () -> (!stg.tensor<[X, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>)
%o = stg.combine %y by %i : (!stg.tensor<[X, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, D], bf16>

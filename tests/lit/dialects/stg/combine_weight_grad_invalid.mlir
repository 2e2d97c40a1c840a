// There is a product for each token and expert of it.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.combine_weight_grad`: weights <[B, X], bf16> are not those of experts <[B, A], i32>
%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>)
%dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B, D], bf16>, !stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, X], bf16>

// -----

// CHECK: error[E0709]: `stg.combine_weight_grad`: the products are partial over [tp], not <[B, A], bf16>
%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[X, C, D/tp], bf16>, !stg.tensor<[B, A], i32>)
%dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[X, C, D/tp], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16>

// -----

// CHECK: error[E0709]: `stg.combine_weight_grad`: tokens <[B, D/tp], bf16>, experts <[B, A], i32> and experts' tokens <[X, C, D], bf16> are not split alike
%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>)
%dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B, D/tp], bf16>, !stg.tensor<[X, C, D], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.combine_weight_grad`: terms <[B, D], bf16, partial [tp]> and <[X, C, D], bf16, partial [tp]> of one axis do not multiply
%dy, %y, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[X, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>)
%dg = stg.combine_weight_grad %dy, %y by %i : (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[X, C, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16, partial [tp]>

// Images are [..., channels, rows, columns] and whole, kernels [channels, rows, columns, width].
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.patch_embedding`: <[Y, X], bf16> is no image [..., channels, rows, columns]
%i, %k = "test.op"() : () -> (!stg.tensor<[Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: <[G, I, J, D], bf16> is not a kernel for images <[C, Y, X], bf16>
%i, %k = "test.op"() : () -> (!stg.tensor<[C, Y, X], bf16>, !stg.tensor<[G, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C, Y, X], bf16>, !stg.tensor<[G, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: each device needs all of `Y` in <[C, Y/tp, X], bf16>
%i, %k = "test.op"() : () -> (!stg.tensor<[C, Y/tp, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C, Y/tp, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: <[B, C, Y, X], bf16> does not become <[P, D], bf16>
%i, %k = "test.op"() : () -> (!stg.tensor<[B, C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[B, C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: the patches are `P`, not `Q` of <[Q, D], bf16>
%i, %k = "test.op"() : () -> (!stg.tensor<[C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[Q, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: the result is <[P, D], bf16>, but its operands make it <[P, D], bf16, partial [tp]>
%i, %k = "test.op"() : () -> (!stg.tensor<[C/tp, Y, X], bf16>, !stg.tensor<[C/tp, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C/tp, Y, X], bf16>, !stg.tensor<[C/tp, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_embedding`: operands disagree about `C`: split over [tp] and over []
%i, %k = "test.op"() : () -> (!stg.tensor<[C/tp, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%p = stg.patch_embedding %i, %k to "P" : (!stg.tensor<[C/tp, Y, X], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[P, D], bf16, partial [tp]>

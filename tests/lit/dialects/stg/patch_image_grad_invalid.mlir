// An image's gradient is a sum over its patches.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.patch_image_grad`: the result is <[C, Y, X], bf16>, but its operands make it <[C, Y, X], bf16, partial [tp]>
%dy, %k = "test.op"() : () -> (!stg.tensor<[P/tp, D], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%di = stg.patch_image_grad %dy, %k : (!stg.tensor<[P/tp, D], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[C, Y, X], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_image_grad`: <[Y, X], bf16> is no image [..., channels, rows, columns]
%dy, %k = "test.op"() : () -> (!stg.tensor<[P, D], bf16>, !stg.tensor<[C, I, J, D], bf16>)
%di = stg.patch_image_grad %dy, %k : (!stg.tensor<[P, D], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[Y, X], bf16>

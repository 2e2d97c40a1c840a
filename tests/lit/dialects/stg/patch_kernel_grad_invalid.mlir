// A kernel's gradient is a sum over images and patches.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.patch_kernel_grad`: the result is <[C, I, J, D], bf16>, but its operands make it <[C, I, J, D], bf16, partial [dp]>
%dy, %i = "test.op"() : () -> (!stg.tensor<[B/dp, P, D], bf16>, !stg.tensor<[B/dp, C, Y, X], bf16>)
%dk = stg.patch_kernel_grad %dy, %i : (!stg.tensor<[B/dp, P, D], bf16>, !stg.tensor<[B/dp, C, Y, X], bf16>) -> !stg.tensor<[C, I, J, D], bf16>

// -----

// CHECK: error[E0709]: `stg.patch_kernel_grad`: <[D], bf16> is not a kernel for images <[B, C, Y, X], bf16>
%dy, %i = "test.op"() : () -> (!stg.tensor<[B, P, D], bf16>, !stg.tensor<[B, C, Y, X], bf16>)
%dk = stg.patch_kernel_grad %dy, %i : (!stg.tensor<[B, P, D], bf16>, !stg.tensor<[B, C, Y, X], bf16>) -> !stg.tensor<[D], bf16>

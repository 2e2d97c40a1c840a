// What the gradient reads of the forward pass is whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.rms_norm_grad`: it is not linear in operand 1, which is partial: <[B, D], bf16, partial [tp]>
%dy, %x, %r = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B], fp32>)
%dx = stg.rms_norm_grad %dy, %x, %r over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `stg.rms_norm_grad`: the result is <[B, D], bf16>, but its operands make it <[B, D], bf16, partial [tp]>
%dy, %x, %r = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16>, !stg.tensor<[B], fp32>)
%dx = stg.rms_norm_grad %dy, %x, %r over [D] : (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16>, !stg.tensor<[B], fp32>) -> !stg.tensor<[B, D], bf16>

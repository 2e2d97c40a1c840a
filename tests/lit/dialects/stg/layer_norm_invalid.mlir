// A layer norm has a weight and a bias at most.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.layer_norm`: affine is a weight and a bias at most
%x, %w = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>)
%y, %mean, %rstd = stg.layer_norm %x affine (%w, %w, %w) over [D]
  : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>) -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B], fp32>, !stg.tensor<[B], fp32>)

// -----

// CHECK: error[E0709]: `stg.layer_norm`: it is not linear in operand 0, which is partial: <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y, %mean, %rstd = stg.layer_norm %x over [D]
  : (!stg.tensor<[D], bf16, partial [tp]>) -> (!stg.tensor<[D], bf16>, !stg.tensor<[], fp32>, !stg.tensor<[], fp32>)

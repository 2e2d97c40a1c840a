// A sum over split positions is partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.rms_norm_weight_grad`: the result is <[D], bf16>, but its operands make it <[D], bf16, partial [dp]>
%dy, %x, %r = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp], fp32>)
%dw = stg.rms_norm_weight_grad %dy, %x, %r : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp], fp32>) -> !stg.tensor<[D], bf16>

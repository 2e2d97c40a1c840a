// A filter's gradient is a sum over all dims but its channels.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.causal_conv_kernel_grad`: the result is <[W, D], bf16>, but its operands make it <[W, D], bf16, partial [dp]>
%dy, %x = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>)
%dk = stg.causal_conv_kernel_grad %dy, %x over "S" : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[W, D], bf16>

// -----

// CHECK: error[E0709]: `stg.causal_conv_kernel_grad`: <[B, S, D], bf16> does not become <[B, S, F], bf16>
%dy, %x = "test.op"() : () -> (!stg.tensor<[B, S, F], bf16>, !stg.tensor<[B, S, D], bf16>)
%dk = stg.causal_conv_kernel_grad %dy, %x over "S" : (!stg.tensor<[B, S, F], bf16>, !stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[W, D], bf16>

// The gradient of a filter: partial over what splits the batch.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x = "test.op"() : () -> (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[B/dp, S, D/tp], bf16>)

// CHECK: %dk = stg.causal_conv_kernel_grad %dy, %x over "S" : (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[B/dp, S, D/tp], bf16>) -> !stg.tensor<[W, D/tp], bf16, partial [dp]>
%dk = stg.causal_conv_kernel_grad %dy, %x over "S"
  : (!stg.tensor<[B/dp, S, D/tp], bf16>, !stg.tensor<[B/dp, S, D/tp], bf16>) -> !stg.tensor<[W, D/tp], bf16, partial [dp]>

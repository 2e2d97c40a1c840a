// The gradient of a kernel: partial over what splits images and patches.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %i = "test.op"() : () -> (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[B/dp, C, Y, X], bf16>)

// CHECK: %dk = stg.patch_kernel_grad %dy, %i : (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[B/dp, C, Y, X], bf16>) -> !stg.tensor<[C, I, J, D], bf16, partial [dp, tp]>
%dk = stg.patch_kernel_grad %dy, %i
  : (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[B/dp, C, Y, X], bf16>) -> !stg.tensor<[C, I, J, D], bf16, partial [dp, tp]>

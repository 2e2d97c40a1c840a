// The gradient of an image: partial over what splits its patches.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %k = "test.op"() : () -> (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[C, I, J, D], bf16>)

// CHECK: %di = stg.patch_image_grad %dy, %k : (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[B/dp, C, Y, X], bf16, partial [tp]>
%di = stg.patch_image_grad %dy, %k
  : (!stg.tensor<[B/dp, P/tp, D], bf16>, !stg.tensor<[C, I, J, D], bf16>) -> !stg.tensor<[B/dp, C, Y, X], bf16, partial [tp]>

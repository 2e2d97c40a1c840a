// The gradient of a function of each element: what it reads of the forward pass is whole, its cotangent may be partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16, partial [tp]>)

// CHECK: %dx = stg.unary_grad "silu" %dy, %x : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%dx = stg.unary_grad "silu" %dy, %x
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>

// CHECK: %dp = stg.unary_grad "silu" %p, %x : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>
%dp = stg.unary_grad "silu" %p, %x
  : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

// The gradient of a softmax reads its result and is linear in dy.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%p, %y = "test.op"() : () -> (!stg.tensor<[B, T/cp], bf16, partial [tp]>, !stg.tensor<[B, T/cp], bf16>)

// CHECK: %dx = stg.softmax_grad %p, %y over [T] : (!stg.tensor<[B, T/cp], bf16, partial [tp]>, !stg.tensor<[B, T/cp], bf16>) -> !stg.tensor<[B, T/cp], bf16, partial [tp]>
%dx = stg.softmax_grad %p, %y over [T]
  : (!stg.tensor<[B, T/cp], bf16, partial [tp]>, !stg.tensor<[B, T/cp], bf16>) -> !stg.tensor<[B, T/cp], bf16, partial [tp]>

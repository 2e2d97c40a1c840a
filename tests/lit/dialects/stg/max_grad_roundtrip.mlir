// The gradient of a maximum goes where the maximum was; it is linear in dy.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%dy, %x, %m = "test.op"() : () -> (!stg.tensor<[B/dp], bf16, partial [tp]>, !stg.tensor<[B/dp, S/cp], bf16>, !stg.tensor<[B/dp], bf16>)

// CHECK: %dx = stg.max_grad %dy, %x, %m : (!stg.tensor<[B/dp], bf16, partial [tp]>, !stg.tensor<[B/dp, S/cp], bf16>, !stg.tensor<[B/dp], bf16>) -> !stg.tensor<[B/dp, S/cp], bf16, partial [tp]>
%dx = stg.max_grad %dy, %x, %m
  : (!stg.tensor<[B/dp], bf16, partial [tp]>, !stg.tensor<[B/dp, S/cp], bf16>, !stg.tensor<[B/dp], bf16>) -> !stg.tensor<[B/dp, S/cp], bf16, partial [tp]>

// A function of each element; of them only the negative may be of a partial value.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bf16, partial [tp]>)

// CHECK: %y = stg.unary "silu" %x : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%y = stg.unary "silu" %x : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>

// CHECK: %n = stg.unary "neg" %p : (!stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>
%n = stg.unary "neg" %p
  : (!stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

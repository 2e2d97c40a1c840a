// Two terms; both are partial over the same axes, or neither is.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %bias = "test.op"() : () -> (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], fp32>)
%p = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

// CHECK: %y = stg.add %x, %bias : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], fp32>) -> !stg.tensor<[B/dp, D/tp], fp32>
%y = stg.add %x, %bias
  : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], fp32>) -> !stg.tensor<[B/dp, D/tp], fp32>

// CHECK: %z = stg.add %p, %p : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>
%z = stg.add %p, %p
  : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[B/dp, D], bf16, partial [tp]>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

%c = "test.op"() : () -> !stg.tensor<[D], bf16>

// CHECK: %w = stg.add %p, %c once : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>
%w = stg.add %p, %c once
  : (!stg.tensor<[B/dp, D], bf16, partial [tp]>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

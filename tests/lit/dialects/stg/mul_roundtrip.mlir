// A product is linear in its left operand, which may be partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], bf16>)
%p, %s = "test.op"() : () -> (!stg.tensor<[B/dp, D], fp32, partial [tp]>, !stg.tensor<[], fp32>)

// CHECK: %y = stg.mul %x, %w : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], bf16>) -> !stg.tensor<[B/dp, D/tp], bf16>
%y = stg.mul %x, %w
  : (!stg.tensor<[B/dp, D/tp], bf16>, !stg.tensor<[D/tp], bf16>) -> !stg.tensor<[B/dp, D/tp], bf16>

// CHECK: %z = stg.mul %p, %s : (!stg.tensor<[B/dp, D], fp32, partial [tp]>, !stg.tensor<[], fp32>) -> !stg.tensor<[B/dp, D], fp32, partial [tp]>
%z = stg.mul %p, %s
  : (!stg.tensor<[B/dp, D], fp32, partial [tp]>, !stg.tensor<[], fp32>) -> !stg.tensor<[B/dp, D], fp32, partial [tp]>

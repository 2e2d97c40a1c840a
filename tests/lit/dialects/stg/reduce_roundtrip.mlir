// Sums and means over a split dim are partial; a maximum is not a sum.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/tp, D], bf16>, !stg.tensor<[B/dp, S], bf16, partial [tp]>)

// CHECK: %s = stg.reduce "sum" %x over [S] : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>
%s = stg.reduce "sum" %x over [S]
  : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16, partial [tp]>

// CHECK: %m = stg.reduce "mean" %x over [S, D] : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp], bf16, partial [tp]>
%m = stg.reduce "mean" %x over [S, D] : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp], bf16, partial [tp]>

// CHECK: %l = stg.reduce "max" %x over [S] : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
%l = stg.reduce "max" %x over [S] : (!stg.tensor<[B/dp, S/tp, D], bf16>) -> !stg.tensor<[B/dp, D], bf16>

// CHECK: %c = stg.reduce "sum" %p over [S] : (!stg.tensor<[B/dp, S], bf16, partial [tp]>) -> !stg.tensor<[B/dp], bf16, partial [tp]>
%c = stg.reduce "sum" %p over [S]
  : (!stg.tensor<[B/dp, S], bf16, partial [tp]>) -> !stg.tensor<[B/dp], bf16, partial [tp]>

// Sums of partial values over some of their axes, and maxima of values that each device has its own of.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%p, %m = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]>, !stg.tensor<[B/dp], fp32>)

// CHECK: %s = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S, D], bf16, partial [cp]>
%s = dist.all_reduce "sum" %p over [tp]
  : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S, D], bf16, partial [cp]>

// CHECK: %x = dist.all_reduce "max" %m over [tp] : !stg.tensor<[B/dp], fp32> -> !stg.tensor<[B/dp], fp32>
%x = dist.all_reduce "max" %m over [tp] : !stg.tensor<[B/dp], fp32> -> !stg.tensor<[B/dp], fp32>

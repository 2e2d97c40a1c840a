// A partial value becomes one that is split, over one axis or several.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%p = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]>

// CHECK: %s = dist.reduce_scatter %p dim "S" over [cp] : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S/cp, D], bf16, partial [tp]>
%s = dist.reduce_scatter %p dim "S" over [cp]
  : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S/cp, D], bf16, partial [tp]>

// CHECK: %a = dist.reduce_scatter %p dim "S" over [cp, tp] : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%a = dist.reduce_scatter %p dim "S" over [cp, tp]
  : !stg.tensor<[B/dp, S, D], bf16, partial [cp, tp]> -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>

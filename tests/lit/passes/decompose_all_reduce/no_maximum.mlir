// A maximum has no reduce-scatter.
// RUN: stagec-opt %s -p 'decompose-all-reduce{axis="tp" scatter="S"}' | filecheck %s

%m = "test.op"() : () -> !stg.tensor<[S], fp32>
// CHECK: dist.all_reduce "max" %m over [tp]
%a = dist.all_reduce "max" %m over [tp] : !stg.tensor<[S], fp32> -> !stg.tensor<[S], fp32>

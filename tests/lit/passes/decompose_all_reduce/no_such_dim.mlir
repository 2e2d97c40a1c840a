// A tensor without the dim is left alone, and so is one that is reduced over more axes.
// RUN: stagec-opt %s -p 'decompose-all-reduce{axis="tp" scatter="S"}' | filecheck %s

%p, %q = "test.op"() : () -> (!stg.tensor<[D], bf16, partial [tp]>, !stg.tensor<[S, D], bf16, partial [dp, tp]>)
// CHECK: dist.all_reduce "sum" %p over [tp]
%a = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[D], bf16, partial [tp]> -> !stg.tensor<[D], bf16>
// CHECK-NEXT: dist.all_reduce "sum" %q over [dp, tp]
%b = dist.all_reduce "sum" %q over [dp, tp] : !stg.tensor<[S, D], bf16, partial [dp, tp]> -> !stg.tensor<[S, D], bf16>

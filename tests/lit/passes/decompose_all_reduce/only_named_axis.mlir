// The all-reduces over the named axis are decomposed, others stay.
// RUN: stagec-opt %s -p 'decompose-all-reduce{axis="tp" scatter="S"}' | filecheck %s

%p, %q = "test.op"() : () -> (!stg.tensor<[S, D], bf16, partial [tp]>, !stg.tensor<[S, D], bf16, partial [dp]>)
// CHECK:      %[[SHARD:[^ ]*]] = dist.reduce_scatter %p dim "S" over [tp]
// CHECK-NEXT: dist.all_gather %[[SHARD]] dim "S" over [tp]
%a = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S, D], bf16>
// CHECK-NEXT: dist.all_reduce "sum" %q over [dp]
%b = dist.all_reduce "sum" %q over [dp] : !stg.tensor<[S, D], bf16, partial [dp]> -> !stg.tensor<[S, D], bf16>

// What is scattered is scattered first: less is left to all-reduce, over all other axes at once.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S, D], bf16, partial [cp, dp, tp]>
// CHECK:      %[[SHARD:[^ ]*]] = dist.reduce_scatter %x dim "S" over [tp]
// CHECK-NEXT: dist.all_reduce "sum" %[[SHARD]] over [cp, dp]
%r = dist.reshard %x : !stg.tensor<[S, D], bf16, partial [cp, dp, tp]> -> !stg.tensor<[S/tp, D], bf16>

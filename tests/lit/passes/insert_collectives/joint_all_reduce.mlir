// Sums over several axes are one all-reduce over their product.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%p = "test.op"() : () -> !stg.tensor<[D], bf16, partial [cp, dp, tp]>
// CHECK:     dist.all_reduce "sum" %p over [cp, dp]
// CHECK-NOT: dist.
%s = dist.reshard %p : !stg.tensor<[D], bf16, partial [cp, dp, tp]> -> !stg.tensor<[D], bf16, partial [tp]>

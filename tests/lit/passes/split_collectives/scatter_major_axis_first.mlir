// A reduce-scatter cuts the largest pieces first.
// RUN: stagec-opt %s -p 'split-collectives{axes="tp","dp"}' | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S, D], bf16, partial [dp, tp]>
// CHECK:      %[[HALF:[^ ]*]] = dist.reduce_scatter %x dim "S" over [dp] {{.*}} -> !stg.tensor<[S/dp, D], bf16, partial [tp]>
// CHECK-NEXT: dist.reduce_scatter %[[HALF]] dim "S" over [tp] {{.*}} -> !stg.tensor<[S/(dp*tp), D], bf16>
%g = dist.reduce_scatter %x dim "S" over [dp, tp] : !stg.tensor<[S, D], bf16, partial [dp, tp]> -> !stg.tensor<[S/(dp*tp), D], bf16>

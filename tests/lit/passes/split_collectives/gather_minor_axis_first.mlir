// A gather joins the smallest pieces first, so that elements keep their order.
// RUN: stagec-opt %s -p 'split-collectives{axes="dp","tp"}' | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S/(dp*tp), D], bf16>
// CHECK:      %[[HALF:[^ ]*]] = dist.all_gather %x dim "S" over [tp] {{.*}} -> !stg.tensor<[S/dp, D], bf16>
// CHECK-NEXT: dist.all_gather %[[HALF]] dim "S" over [dp] {{.*}} -> !stg.tensor<[S, D], bf16>
%g = dist.all_gather %x dim "S" over [dp, tp] : !stg.tensor<[S/(dp*tp), D], bf16> -> !stg.tensor<[S, D], bf16>

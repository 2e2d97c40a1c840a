// A reshard that is `at_once` gathers several dims, or scatters to them, in one collective over the axes of all; any other in one for each.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/(cp*tp), D], bf16>, !stg.tensor<[B, S/cp, D], bf16, partial [dp, tp]>)
// CHECK:      dist.all_gather %x dim "B" over [dp, tp] with <[S/tp]>
// CHECK-NEXT: dist.reduce_scatter %p dim "B" over [dp, tp] with <[S/tp]>
%a = dist.reshard %x {at_once} : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S/cp, D], bf16>
%b = dist.reshard %p {at_once} : !stg.tensor<[B, S/cp, D], bf16, partial [dp, tp]> -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
// CHECK-NEXT: dist.all_gather %x dim "S" over [tp]
%c = dist.reshard %x {at_once} : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/cp, D], bf16>
// CHECK-NEXT: %[[HALF:[^ ]*]] = dist.all_gather %x dim "B" over [dp] {
// CHECK-NEXT: dist.all_gather %[[HALF]] dim "S" over [tp] {
%d = dist.reshard %x : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S/cp, D], bf16>

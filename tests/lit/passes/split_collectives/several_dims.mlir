// A collective of several dims is one for each axis.
// RUN: stagec-opt %s -p 'split-collectives{axes="dp","tp"}' | filecheck %s

%x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/tp], bf16>, !stg.tensor<[B, S], bf16, partial [dp, tp]>)
// CHECK:      %[[A:[^ ]*]] = dist.all_gather %x dim "S" over [tp] {
// CHECK-NEXT: dist.all_gather %[[A]] dim "B" over [dp] {
%g = dist.all_gather %x dim "B" over [dp, tp] with <[S/tp]> : !stg.tensor<[B/dp, S/tp], bf16> -> !stg.tensor<[B, S], bf16>
// CHECK-NEXT: %[[B:[^ ]*]] = dist.reduce_scatter %p dim "B" over [dp] {
// CHECK-NEXT: dist.reduce_scatter %[[B]] dim "S" over [tp] {
%r = dist.reduce_scatter %p dim "B" over [dp, tp] with <[S/tp]> : !stg.tensor<[B, S], bf16, partial [dp, tp]> -> !stg.tensor<[B/dp, S/tp], bf16>

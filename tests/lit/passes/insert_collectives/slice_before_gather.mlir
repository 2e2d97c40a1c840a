// What a device drops is dropped before the rest is gathered.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S], bf16>
// CHECK:      %[[PART:[^ ]*]] = dist.slice %x dim "S" over [tp]
// CHECK-NEXT: dist.all_gather %[[PART]] dim "B" over [dp]
%r = dist.reshard %x : !stg.tensor<[B/dp, S], bf16> -> !stg.tensor<[B, S/tp], bf16>

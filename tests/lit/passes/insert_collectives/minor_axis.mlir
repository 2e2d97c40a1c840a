// The minor of two axes that split a dim can be gathered alone.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[S/(cp*tp), D], bf16>
// CHECK:     dist.all_gather %x dim "S" over [tp] {{.*}} -> !stg.tensor<[S/cp, D], bf16>
// CHECK-NOT: dist.
%r = dist.reshard %x : !stg.tensor<[S/(cp*tp), D], bf16> -> !stg.tensor<[S/cp, D], bf16>

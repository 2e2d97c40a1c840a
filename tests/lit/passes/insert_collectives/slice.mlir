// An axis that starts to split costs no communication.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16>
// CHECK:     dist.slice %x dim "S" over [tp]
// CHECK-NOT: dist.
%r = dist.reshard %x : !stg.tensor<[B/dp, S, D], bf16> -> !stg.tensor<[B/dp, S/tp, D], bf16>

// A dim that is wanted whole is gathered over all its axes by one collective.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp)], bf16>
// CHECK:     dist.all_gather %x dim "S" over [cp, tp]
// CHECK-NOT: dist.
%y = dist.reshard %x : !stg.tensor<[B/dp, S/(cp*tp)], bf16> -> !stg.tensor<[B/dp, S], bf16>

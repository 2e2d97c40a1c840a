// A tensor repeated along further dims, each device its share of them.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp], bf16, partial [tp]>

// CHECK: %y = stg.broadcast %x : (!stg.tensor<[B/dp], bf16, partial [tp]>) -> !stg.tensor<[B/dp, S/cp, D], bf16, partial [tp]>
%y = stg.broadcast %x : (!stg.tensor<[B/dp], bf16, partial [tp]>) -> !stg.tensor<[B/dp, S/cp, D], bf16, partial [tp]>

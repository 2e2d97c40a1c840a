// The rotation and its inverse are linear.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %p = "test.op"() : () -> (!stg.tensor<[B/dp, S/cp, H/tp, E], bf16>, !stg.tensor<[S, E], bf16, partial [tp]>)

// CHECK: %y = stg.rope %x : (!stg.tensor<[B/dp, S/cp, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S/cp, H/tp, E], bf16>
%y = stg.rope %x : (!stg.tensor<[B/dp, S/cp, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S/cp, H/tp, E], bf16>

// CHECK: %z = stg.rope inverse %p : (!stg.tensor<[S, E], bf16, partial [tp]>) -> !stg.tensor<[S, E], bf16, partial [tp]>
%z = stg.rope inverse %p : (!stg.tensor<[S, E], bf16, partial [tp]>) -> !stg.tensor<[S, E], bf16, partial [tp]>

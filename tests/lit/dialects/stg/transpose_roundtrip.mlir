// The dims of a tensor in another order.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D/tp], bf16>

// CHECK: %y = stg.transpose %x : (!stg.tensor<[B/dp, S, D/tp], bf16>) -> !stg.tensor<[D/tp, B/dp, S], bf16>
%y = stg.transpose %x : (!stg.tensor<[B/dp, S, D/tp], bf16>) -> !stg.tensor<[D/tp, B/dp, S], bf16>

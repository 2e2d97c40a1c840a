// A filter whose first elements see the last ones of an earlier iteration.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %kernel = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>)
%state = stg.cache "seen" : !stg.tensor<[B/dp, sequences, W, H/tp, E], bf16>

// CHECK: %y = stg.resumed_conv %x, %kernel, %state over "S" resumed "1"
%y = stg.resumed_conv %x, %kernel, %state over "S" resumed "1" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>, !stg.tensor<[B/dp, sequences, W, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

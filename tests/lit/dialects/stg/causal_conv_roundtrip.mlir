// A filter for each channel along a whole sequence, back or ahead: channels may be split.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %k = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>)

// CHECK: %y = stg.causal_conv %x, %k over "S" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%y = stg.causal_conv %x, %k over "S"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// CHECK: %dx = stg.causal_conv reverse %y, %k over "S" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%dx = stg.causal_conv reverse %y, %k over "S"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[W, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

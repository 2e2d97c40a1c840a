// The recurrence of a gated delta net, split over heads: those of keys as those of values.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%q, %v, %t = "test.op"() : () -> (!stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: %y = stg.gated_delta_rule %q, %q, %v, %t, %t chunk "Q" : (!stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[B/dp, S, H/tp], fp32>) -> !stg.tensor<[B/dp, S, H/tp, G], bf16>
%y = stg.gated_delta_rule %q, %q, %v, %t, %t chunk "Q"
  : (!stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[B/dp, S, H/tp], fp32>) -> !stg.tensor<[B/dp, S, H/tp, G], bf16>

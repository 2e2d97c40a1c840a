// The recurrence of a gated delta net that goes on from the state of each sequence of a row.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%q, %v, %t = "test.op"() : () -> (!stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)
%state = stg.cache "state" : !stg.tensor<[B/dp, sequences, H/tp, E, G], fp32>

// CHECK: %y = stg.resumed_delta_rule %q, %q, %v, %t, %t, %state pairs "64*S" chunks "4" steps "0" resumed "1"
%y = stg.resumed_delta_rule %q, %q, %v, %t, %t, %state pairs "64*S" chunks "4" steps "0" resumed "1"
  : (!stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[B/dp, sequences, H/tp, E, G], fp32>) -> !stg.tensor<[B/dp, S, H/tp, G], bf16>

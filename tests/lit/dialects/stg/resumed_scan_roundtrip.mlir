// A recurrence that goes on from the state of each sequence of a row.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %dt, %a, %b, %c = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>)
%state = stg.cache "state" : !stg.tensor<[B/dp, sequences, H/tp, E, N], fp32>

// CHECK: %y = stg.resumed_scan %x, %dt, %a, %b, %c, %state pairs "16*S" chunks "4" steps "0" resumed "1"
%y = stg.resumed_scan %x, %dt, %a, %b, %c, %state pairs "16*S" chunks "4" steps "0" resumed "1" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, sequences, H/tp, E, N], fp32>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

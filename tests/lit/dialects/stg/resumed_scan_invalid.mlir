// The state has the heads, their width, and that of the state, for each sequence of a row.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.resumed_scan`: <[B, H, E, N], fp32> is not a state of <[B, S, H, E], bf16>
%x, %dt, %a, %b, %c = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, S, N], bf16>)
%state = stg.cache "state" : !stg.tensor<[B, H, E, N], fp32>
%y = stg.resumed_scan %x, %dt, %a, %b, %c, %state pairs "S" chunks "4" steps "0" resumed "1" : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, H, E, N], fp32>) -> !stg.tensor<[B, S, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.resumed_scan`: operands disagree about `H`: split over [tp] and over []
%x, %dt, %a, %b, %c = "test.op"() : () -> (!stg.tensor<[B, S, H/tp, E], bf16>, !stg.tensor<[B, S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, S, N], bf16>)
%state = stg.cache "state" : !stg.tensor<[B, sequences, H, E, N], fp32>
%y = stg.resumed_scan %x, %dt, %a, %b, %c, %state pairs "S" chunks "4" steps "0" resumed "1" : (!stg.tensor<[B, S, H/tp, E], bf16>, !stg.tensor<[B, S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, S, N], bf16>, !stg.tensor<[B, sequences, H, E, N], fp32>) -> !stg.tensor<[B, S, H/tp, E], bf16>

// The state has the heads of values, the width of a key and that of a value, for each sequence of a row.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.resumed_delta_rule`: <[B, sequences, H, G, E], fp32> is not a state of <[B, S, H, G], bf16>
%q, %v, %t = "test.op"() : () -> (!stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, H, G], bf16>, !stg.tensor<[B, S, H], bf16>)
%state = stg.cache "state" : !stg.tensor<[B, sequences, H, G, E], fp32>
%y = stg.resumed_delta_rule %q, %q, %v, %t, %t, %state pairs "64*S" chunks "4" steps "0" resumed "1" : (!stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, H, G], bf16>, !stg.tensor<[B, S, H], bf16>, !stg.tensor<[B, S, H], bf16>, !stg.tensor<[B, sequences, H, G, E], fp32>) -> !stg.tensor<[B, S, H, G], bf16>

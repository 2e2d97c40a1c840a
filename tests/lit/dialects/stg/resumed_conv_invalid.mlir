// The state has the width of the filter and the channels, for each sequence of a row.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.resumed_conv`: <[B, sequences, H, E], bf16> is not a state of <[B, S, H, E], bf16>
%x, %kernel = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[W, H, E], bf16>)
%state = stg.cache "seen" : !stg.tensor<[B, sequences, H, E], bf16>
%y = stg.resumed_conv %x, %kernel, %state over "S" resumed "1" : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[W, H, E], bf16>, !stg.tensor<[B, sequences, H, E], bf16>) -> !stg.tensor<[B, S, H, E], bf16>

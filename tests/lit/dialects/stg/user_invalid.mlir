// What splits an operand's dim splits the result's; a size is an expression.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.user`: the result is <[B], bf16>, but its operands make it <[B/dp], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp], bf16>
%y = stg.user "f" (%x) flops "B" bytes "B" backward_flops "B" backward_bytes "B" : (!stg.tensor<[B/dp], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0708]: `2*` is not a size
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
%y = stg.user "f" (%x) flops "2*" bytes "B" backward_flops "B" backward_bytes "B" : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>

// A gradient that sums over a split dim is partial.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.user_grad`: the result is <[D], bf16>, but its operands make it <[D], bf16, partial [dp]>
%dy = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
%dw = stg.user_grad "f" (%dy) flops "B" bytes "B" : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[D], bf16>

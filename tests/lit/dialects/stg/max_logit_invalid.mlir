// One number per position, spread as the positions.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.max_logit`: the result is <[B], fp32>, but its operands make it <[B/dp], fp32>
%l = "test.op"() : () -> !stg.tensor<[B/dp, V/tp], bf16>
%m = stg.max_logit %l : (!stg.tensor<[B/dp, V/tp], bf16>) -> !stg.tensor<[B], fp32>

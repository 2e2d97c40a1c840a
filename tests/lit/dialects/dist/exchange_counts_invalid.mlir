// One whole number for each expert comes and goes.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.exchange_counts`: as many numbers come as go
%n = "test.op"() : () -> !stg.tensor<[X], i64>
%m = dist.exchange_counts %n over [ep] : !stg.tensor<[X], i64> -> !stg.tensor<[X/ep], i64>

// -----

// CHECK: error[E0709]: `dist.exchange_counts`: one i64 for each expert travels, not <[X, C], i64>
%n = "test.op"() : () -> !stg.tensor<[X, C], i64>
%m = dist.exchange_counts %n over [ep] : !stg.tensor<[X, C], i64> -> !stg.tensor<[X, C], i64>

// -----

// CHECK: error[E0709]: `dist.exchange_counts`: one i64 for each expert travels, not <[X], bf16>
%n = "test.op"() : () -> !stg.tensor<[X], bf16>
%m = dist.exchange_counts %n over [ep] : !stg.tensor<[X], bf16> -> !stg.tensor<[X], bf16>

// -----

// CHECK: error[E0709]: `dist.exchange_counts`: there is no axis to exchange over
%n = "test.op"() : () -> !stg.tensor<[X], i64>
%m = dist.exchange_counts %n over [] : !stg.tensor<[X], i64> -> !stg.tensor<[X], i64>

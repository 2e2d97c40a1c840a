// Sums are of what a device has, for parts that it names.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.fan_in`: <[Q/en, V, D], bf16> and <[P, U/en, D], bf16> are not split alike: copies do not travel
%y = "test.op"() : () -> !stg.tensor<[Q/en, V, D], bf16>
%s = stg.fan_in %y to "P" "U" : (!stg.tensor<[Q/en, V, D], bf16>) -> !stg.tensor<[P, U/en, D], bf16>

// -----

// CHECK: error[E0709]: `stg.fan_in`: <[P, U, D], fp32> are not sums for `P` of <[Q, V, D], bf16>
%y = "test.op"() : () -> !stg.tensor<[Q, V, D], bf16>
%s = stg.fan_in %y to "P" "U" : (!stg.tensor<[Q, V, D], bf16>) -> !stg.tensor<[P, U, D], fp32>

// What is cut is a dim of the operand, split as its parts are.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.split`: there is no dim `F` in <[S, E], bf16>
%x = "test.op"() : () -> !stg.tensor<[S, E], bf16>
%n, %r = stg.split %x over "F" to [N, R] : (!stg.tensor<[S, E], bf16>) -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, R], bf16>)

// -----

// CHECK: error[E0709]: `stg.split`: the result is <[S, N], bf16>, but its operands make it <[S, N/tp], bf16>
%x = "test.op"() : () -> !stg.tensor<[S, E/tp], bf16>
%n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[S, E/tp], bf16>) -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, R], bf16>)

// -----

// CHECK: error[E0709]: `stg.split`: 3 dims are cut, for 2 results
%x = "test.op"() : () -> !stg.tensor<[S, E], bf16>
%n, %r = stg.split %x over "E" to [N, R, R] : (!stg.tensor<[S, E], bf16>) -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, R], bf16>)

// -----

// CHECK: error[E0709]: `stg.split`: <[S, E], bf16> does not become <[S, C], bf16>
%x = "test.op"() : () -> !stg.tensor<[S, E], bf16>
%n, %r = stg.split %x over "E" to [N, R] : (!stg.tensor<[S, E], bf16>) -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, C], bf16>)

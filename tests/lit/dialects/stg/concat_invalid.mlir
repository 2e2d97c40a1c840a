// What is joined is split alike, a dim of each operand, and partial in all or none.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.concat`: there is no dim `R` in <[S, C], bf16>
%a, %b = "test.op"() : () -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, C], bf16>)
%k = stg.concat %a, %b over [N, R] to "E" : (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, C], bf16>) -> !stg.tensor<[S, E], bf16>

// -----

// CHECK: error[E0709]: `stg.concat`: 1 dims are joined, of 2 operands
%a, %b = "test.op"() : () -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>)
%k = stg.concat %a, %b over [N] to "E" : (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>) -> !stg.tensor<[S, E], bf16>

// -----

// CHECK: error[E0709]: `stg.concat`: `N` in <[S, N/tp], bf16> and `R` in <[S, R], bf16> are not split alike
%a, %b = "test.op"() : () -> (!stg.tensor<[S, N/tp], bf16>, !stg.tensor<[S, R], bf16>)
%k = stg.concat %a, %b over [N, R] to "E" : (!stg.tensor<[S, N/tp], bf16>, !stg.tensor<[S, R], bf16>) -> !stg.tensor<[S, E], bf16>

// -----

// CHECK: error[E0709]: `stg.concat`: it is not linear in operand 0, which is partial: <[S, N], bf16, partial [tp]>
%a, %b = "test.op"() : () -> (!stg.tensor<[S, N], bf16, partial [tp]>, !stg.tensor<[S, R], bf16>)
%k = stg.concat %a, %b over [N, R] to "E" : (!stg.tensor<[S, N], bf16, partial [tp]>, !stg.tensor<[S, R], bf16>) -> !stg.tensor<[S, E], bf16, partial [tp]>

// -----

// CHECK: error[E0709]: `stg.concat`: <[S, N], bf16> does not become <[S, F], bf16>
%a, %b = "test.op"() : () -> (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, R], bf16>)
%k = stg.concat %a, %b over [N, R] to "E" : (!stg.tensor<[S, N], bf16>, !stg.tensor<[S, R], bf16>) -> !stg.tensor<[S, F], bf16>

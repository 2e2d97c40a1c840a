// The chosen dim takes the place of the dim chosen from; numbers of experts are whole.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.topk`: scores <[B, S], bf16> are not over `X`
%s = "test.op"() : () -> !stg.tensor<[B, S], bf16>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, S], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: <[B, X], bf16> does not become <[B, X], bf16>
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, X], bf16>, !stg.tensor<[B, A], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: <[B, X], bf16> does not become <[A, B], i32>
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[A, B], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: weights are bf16 as scores are
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, A], fp32>, !stg.tensor<[B, A], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: numbers of experts are i32 or i64, not bf16
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>)

// -----

// CHECK: error[E0709]: `stg.topk`: it is not linear in operand 0, which is partial: <[B, X], bf16, partial [tp]>
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16, partial [tp]>
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16, partial [tp]>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: the bias is <[B], bf16>, not one number for each of `X`
%s, %b = "test.op"() : () -> (!stg.tensor<[B, X], bf16>, !stg.tensor<[B], bf16>)
%g, %i = stg.topk %s bias %b over "X" to "A" : (!stg.tensor<[B, X], bf16>, !stg.tensor<[B], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)

// -----

// CHECK: error[E0709]: `stg.topk`: groups have a limit, and a limit is of groups
%s = "test.op"() : () -> !stg.tensor<[B, X], bf16>
%g, %i = stg.topk %s over "X" to "A" groups "8" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)

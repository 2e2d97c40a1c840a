// Weights, their gradient and experts are of the same choice; what it is from differs in one dim.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.topk_grad`: numbers of experts are i32 or i64, not bf16
%dg, %g = "test.op"() : () -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>)
%ds = stg.topk_grad %dg, %g, %g : (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, X], bf16>

// -----

// CHECK: error[E0709]: `stg.topk_grad`: weights and experts have the dims of dweights
%dg, %g, %i = "test.op"() : () -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[A, B], bf16>, !stg.tensor<[B, A], i32>)
%ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B, A], bf16>, !stg.tensor<[A, B], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, X], bf16>

// -----

// CHECK: error[E0709]: `stg.topk_grad`: <[B, A], bf16> is not a choice from scores <[S, X], bf16>
%dg, %g, %i = "test.op"() : () -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)
%ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[S, X], bf16>

// -----

// CHECK: error[E0709]: `stg.topk_grad`: <[B, A], bf16> is not a choice from scores <[B, A], bf16>
%dg, %g, %i = "test.op"() : () -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)
%ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, A], bf16>

// -----

// CHECK: error[E0709]: `stg.topk_grad`: the result is <[B, X], bf16>, but its operands make it <[B, X], bf16, partial [tp]>
%dg, %g, %i = "test.op"() : () -> (!stg.tensor<[B, A], bf16, partial [tp]>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)
%ds = stg.topk_grad %dg, %g, %i : (!stg.tensor<[B, A], bf16, partial [tp]>, !stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>) -> !stg.tensor<[B, X], bf16>

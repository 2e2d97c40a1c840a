// What is combined are parts over the axes that the op names, with a log-sum-exp for each query, head and part.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.combine_attention`: <[cp.parts, S, H, E], bf16> has no parts over [dcp]
%o, %lse = "test.op"() : () -> (!stg.tensor<[cp.parts, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>)
%y = stg.combine_attention %o, %lse over [dcp] by "all_to_all"
  : (!stg.tensor<[cp.parts, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>) -> !stg.tensor<[S, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.combine_attention`: parts are combined by reduce_scatter or all_to_all
%o, %lse = "test.op"() : () -> (!stg.tensor<[cp.parts, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>)
%y = stg.combine_attention %o, %lse over [cp] by "all_gather"
  : (!stg.tensor<[cp.parts, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>) -> !stg.tensor<[S, H, E], bf16>

// -----

// A sum of weighted parts is of all ranks.
// CHECK: error[E0709]: `stg.combine_attention`: the result is <[S, H, E], bf16>, but its operands make it <[S, H, E], bf16, partial [cp]>
%o, %lse = "test.op"() : () -> (!stg.tensor<[cp.parts/cp, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>)
%y = stg.combine_attention %o, %lse over [cp] by "reduce_scatter"
  : (!stg.tensor<[cp.parts/cp, S, H, E], bf16>, !stg.tensor<[cp.parts, S, H], fp32>) -> !stg.tensor<[S, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.attention`: keys are spread over [cp], and split over [tp]
%q, %k = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T/tp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k count "causal" spread [cp]
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T/tp, H, E], bf16>, !stg.tensor<[T/tp, H, E], bf16>) -> (!stg.tensor<[cp.parts/tp, S, H, E], bf16>, !stg.tensor<[cp.parts/tp, S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: keys are spread over [cp], and the result is not of `cp.parts`
%q, %k = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k count "causal" spread [cp]
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T/cp, H, E], bf16>, !stg.tensor<[T/cp, H, E], bf16>) -> (!stg.tensor<[tp.parts/cp, S, H, E], bf16>, !stg.tensor<[tp.parts/cp, S, H], fp32>)

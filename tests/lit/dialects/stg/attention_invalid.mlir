// Heads of queries and of keys are one index: an axis splits both or neither.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.attention`: operands disagree about `H`: split over [tp] and over []
%q, %k = "test.op"() : () -> (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, K, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal"
  : (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, K, E], bf16>, !stg.tensor<[S, K, E], bf16>) -> (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, H/tp], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: it is not linear in operand 0, which is partial: <[S, H, E], bf16, partial [tp]>
%q, %k = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16, partial [tp]>, !stg.tensor<[S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal"
  : (!stg.tensor<[S, H, E], bf16, partial [tp]>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: FLOPs count `half`, not `causal` or `full`
%q = "test.op"() : () -> !stg.tensor<[S, H, E], bf16>
%o, %lse = stg.attention %q, %q, %q causal count "half"
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: a cap is a number above 0, not `0`
%q = "test.op"() : () -> !stg.tensor<[S, H, E], bf16>
%o, %lse = stg.attention %q, %q, %q causal count "causal" softcap "0"
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: heads of queries are split over [kv, r], those of keys over [], and copies are along [r]
%c, %d = "test.op"() : () -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K, E], bf16>)
%w, %x = stg.attention %c, %d, %d causal count "causal" copies [r]
  : (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K, E], bf16>, !stg.tensor<[B, S, K, E], bf16>) -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, H/(kv*r)], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: what comes with scores are sinks, and a bias behind them
%q, %k, %b, %s = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[S, T], bf16>, !stg.tensor<[H], bf16>)
%o, %lse = stg.attention %q, %k, %k with %b, %s count "causal"
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[S, T], bf16>, !stg.tensor<[H], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.attention`: a bias has the positions `S` and `T`, and may have [H], but is [S, H]
%q, %k, %b = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[S, H], bf16>)
%o, %lse = stg.attention %q, %k, %k with %b count "causal"
  : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[T, H, E], bf16>, !stg.tensor<[S, H], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)

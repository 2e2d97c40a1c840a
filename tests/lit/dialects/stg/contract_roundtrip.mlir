// A contraction names the dims that it sums over; over a split one the result is partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %w = "test.op"() : () -> (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, H/tp, E], bf16>)
%o, %wo = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[H/tp, E, D], bf16>)
%p = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%r = "test.op"() : () -> !stg.tensor<[D, F], bf16>

// CHECK: %q = stg.contract %x, %w over [D] : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%q = stg.contract %x, %w over [D]
  : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[D, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// CHECK: %y = stg.contract %o, %wo over [H, E] : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[H/tp, E, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>
%y = stg.contract %o, %wo over [H, E]
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[H/tp, E, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16, partial [tp]>

// CHECK: %z = stg.contract %p, %r over [D] : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B/dp, S, F], bf16, partial [tp]>
%z = stg.contract %p, %r over [D]
  : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B/dp, S, F], bf16, partial [tp]>

// CHECK: %outer = stg.contract %p, %r over [] : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B/dp, S, D, F], bf16, partial [tp]>
%outer = stg.contract %p, %r over []
  : (!stg.tensor<[B/dp, S, D], bf16, partial [tp]>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B/dp, S, D, F], bf16, partial [tp]>

// What is data, what is split otherwise than the terms, and what is added to a sum that others read too, is added after the sum.
// RUN: stagec-opt %s -p add-biases-first | filecheck %s

// CHECK-NOT: once
dist.mesh <dp = 2, tp = 4>
stg.program "M" (%x : !stg.tensor<[S, F/tp], bf16>, %u : !stg.tensor<[D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[F/tp, D], bf16>
  %b = stg.weight "b" : !stg.tensor<[D], bf16>
  %e = stg.weight "e" : !stg.tensor<[D/tp], bf16>
  %p = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %r = dist.reshard %p : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  %y = stg.add %r, %u : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  %q = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %s = dist.reshard %q : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S, D/tp], bf16>
  %z = stg.add %s, %e : (!stg.tensor<[S, D/tp], bf16>, !stg.tensor<[D/tp], bf16>) -> !stg.tensor<[S, D/tp], bf16>
  %o = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %t = dist.reshard %o : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  %v = stg.add %t, %b : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  stg.output %y, %z, %v, %t : !stg.tensor<[S/tp, D], bf16>, !stg.tensor<[S, D/tp], bf16>, !stg.tensor<[S/tp, D], bf16>, !stg.tensor<[S/tp, D], bf16>
}

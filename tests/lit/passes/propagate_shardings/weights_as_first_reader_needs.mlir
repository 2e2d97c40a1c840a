// A weight is stored as its first reader needs it, in a repeat too, whatever the later ones need.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 4>
dist.rule [F] over [tp]
dist.rule [D] over [tp]
stg.program "M" (%t : !stg.tensor<[B], i32>) {
  %x, %f = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, F], bf16>)
  // The embedding's rows are split by width, the head contracts it.
  // CHECK: stg.weight "tied" : !stg.tensor<[V, D/tp], bf16>
  %w = stg.weight "tied" : !stg.tensor<[V, D], bf16>
  // CHECK: stg.weight "ups" : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>
  %us = stg.weight "ups" : !stg.stack<"L" x !stg.tensor<[D, F], bf16>>
  %e = stg.embedding %t, %w : (!stg.tensor<[B], i32>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B, D], bf16>
  // CHECK: slice(%u = %us : !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>)
  stg.repeat "L" slice(%u = %us : !stg.stack<"L" x !stg.tensor<[D, F], bf16>>) {
    %y = stg.contract %x, %u over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16>
    stg.yield
  }
  %l = stg.contract %e, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B, V], bf16>
  stg.output
}

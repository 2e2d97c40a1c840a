// Experts' tokens are split over all that splits tokens, those that are exchanged for experts last.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <edp = 2, ep = 4>
dist.rule [B] over [edp, ep]
dist.rule [X] over [ep]
dist.rule [C] over [edp, ep]
stg.program "M" (%t : !stg.tensor<[B, D], bf16>) {
  %x = stg.unary "silu" %t : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %s = stg.weight "s" : !stg.tensor<[B, X], bf16>
  %g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B, X], bf16>) -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)
  // CHECK: stg.dispatch {{.*}}placement = #dist.placement<[B/(edp*ep), C/(edp*ep)]>} {{.*}} -> (!stg.tensor<[X/ep, C/edp, D], bf16>
  %r, %n = stg.dispatch %x by %i to "X" "C"
    : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)
  stg.output %r : !stg.tensor<[X, C, D], bf16>
}

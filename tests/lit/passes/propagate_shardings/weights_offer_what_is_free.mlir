// A rule on a weight is an offer: experts are split over their axis, the router, whose readers use the axis, is not.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <ep = 4>
dist.rule [B] over [ep]
dist.rule [X] over [ep]
stg.program "M" () {
  %x, %t = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[X, C, D], bf16>)
  // CHECK: stg.weight "router" : !stg.tensor<[D, X], bf16>
  %r = stg.weight "router" : !stg.tensor<[D, X], bf16>
  // CHECK: stg.weight "up" : !stg.tensor<[X/ep, D, F], bf16>
  %w = stg.weight "up" : !stg.tensor<[X, D, F], bf16>
  // CHECK: stg.contract %x, %r over [D] {placement = #dist.placement<[B/ep]>}
  %s = stg.contract %x, %r over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, X], bf16>) -> !stg.tensor<[B, X], bf16>
  // CHECK: stg.contract %t, %w over [D] {placement = #dist.placement<[X/ep]>}
  %y = stg.contract %t, %w over [D]
    : (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X, D, F], bf16>) -> !stg.tensor<[X, C, F], bf16>
  stg.output
}

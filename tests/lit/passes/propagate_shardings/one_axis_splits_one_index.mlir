// An axis splits one index of an op, even where its operands and results are split over it in different dims.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <dp = 2, tp = 4>
dist.rule [B] over [dp]
dist.rule [H] over [tp]
dist.rule [S] over [tp]
stg.program "M" () {
  // CHECK: "test.op"() {{.*}} (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S/tp, D], bf16>)
  %o, %x = "test.op"() : () -> (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, D], bf16>)
  %w = stg.weight "wo" : !stg.tensor<[H, E, D], bf16>
  // CHECK: stg.contract %o, %w over [H, E] {placement = #dist.placement<[B/dp, H/tp]>} : {{.*}} -> !stg.tensor<[B/dp, S/tp, D], bf16>
  %y = stg.contract %o, %w over [H, E]
    : (!stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[H, E, D], bf16>) -> !stg.tensor<[B, S, D], bf16>
  stg.output
}

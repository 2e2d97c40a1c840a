// What an op keeps for its gradient is spread as the op, whatever the rules say of its dims.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <dp = 2, tp = 4>
dist.rule [B] over [dp]
dist.rule [V] over [tp]
dist.rule [S] over [tp]
stg.program "M" () {
  %l, %t = "test.op"() : () -> (!stg.tensor<[B, S, V], bf16>, !stg.tensor<[B, S], i32>)
  // CHECK: stg.cross_entropy {{.*}} {placement = #dist.placement<[B/dp, V/tp]>}
  %loss, %lse = stg.cross_entropy %l, %t
    : (!stg.tensor<[B, S, V], bf16>, !stg.tensor<[B, S], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B, S], fp32>)
  stg.output
}

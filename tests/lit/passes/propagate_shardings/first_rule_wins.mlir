// An axis splits one dim of a tensor: that of the first rule that applies.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 4>
dist.rule [F] over [tp]
dist.rule [S] over [tp]
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[S, F], bf16>
  // CHECK: stg.unary "silu" %w {placement = #dist.placement<[F/tp]>} : {{.*}} -> !stg.tensor<[S, F/tp], bf16>
  %y = stg.unary "silu" %w : (!stg.tensor<[S, F], bf16>) -> !stg.tensor<[S, F], bf16>
  stg.output %y : !stg.tensor<[S, F], bf16>
}

// An input offers nothing: what only an input could have split is not split.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 4>
dist.rule [V] over [tp]
stg.program "M" (%x : !stg.tensor<[B, V], bf16>) {
  // CHECK: stg.reduce {{.*}} {placement = #dist.placement<[]>} : (!stg.tensor<[B, V], bf16>) -> !stg.tensor<[B], bf16>
  %y = stg.reduce "sum" %x over [V] : (!stg.tensor<[B, V], bf16>) -> !stg.tensor<[B], bf16>
  stg.output %y : !stg.tensor<[B], bf16>
}

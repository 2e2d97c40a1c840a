// A rule for the bags of several lengths splits what was looked up, not the lookup.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 2>
dist.rule [T, N] over [tp]
stg.program "M" (%i : !stg.tensor<[N], i32>) {
  %w = stg.weight "w" : !stg.tensor<[R, E], fp32>
  // CHECK:      stg.embedding_bag {{.*}} over "N" to "T" {placement = #dist.placement<[]>}
  // CHECK-SAME: -> !stg.tensor<[T/tp, E], fp32>
  %v = stg.embedding_bag %i, %w over "N" to "T" : (!stg.tensor<[N], i32>, !stg.tensor<[R, E], fp32>) -> !stg.tensor<[T, E], fp32>
  stg.output %v : !stg.tensor<[T, E], fp32>
}

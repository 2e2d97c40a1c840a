// Scores that a mask replaced get no gradient.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[S, T], fp32>
  %m = stg.causal_mask %w query "S" key "T" : (!stg.tensor<[S, T], fp32>) -> !stg.tensor<[S, T], fp32>
  %p = stg.softmax %m over [T] : (!stg.tensor<[S, T], fp32>) -> !stg.tensor<[S, T], fp32>
  %loss = stg.reduce "sum" %p over [S, T] : (!stg.tensor<[S, T], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:      %[[DM:[^ ]*]] = stg.softmax_grad {{.*}}, %p over [T]
  // CHECK-NEXT: stg.causal_mask zero %[[DM]] query "S" key "T"
  stg.output %loss : !stg.tensor<[], fp32>
}

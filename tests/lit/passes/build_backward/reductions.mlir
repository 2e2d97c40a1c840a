// A sum hands its cotangent to each term, a mean its share, a maximum all of it to the largest.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[B, S, D], fp32>
  %m = stg.reduce "max" %w over [D] : (!stg.tensor<[B, S, D], fp32>) -> !stg.tensor<[B, S], fp32>
  %a = stg.reduce "mean" %m over [S] : (!stg.tensor<[B, S], fp32>) -> !stg.tensor<[B], fp32>
  %loss = stg.reduce "sum" %a over [B] : (!stg.tensor<[B], fp32>) -> !stg.tensor<[], fp32>
  // CHECK:      %[[DA:[^ ]*]] = stg.broadcast {{.*}} -> !stg.tensor<[B], fp32>
  // CHECK-NEXT: %[[SPREAD:[^ ]*]] = stg.broadcast %[[DA]] {{.*}} -> !stg.tensor<[B, S], fp32>
  // CHECK-NEXT: %[[SHARE:[^ ]*]] = stg.constant "1/S"
  // CHECK-NEXT: %[[DM:[^ ]*]] = stg.mul %[[SPREAD]], %[[SHARE]]
  // CHECK-NEXT: stg.max_grad %[[DM]], %w, %m
  stg.output %loss : !stg.tensor<[], fp32>
}

// Of three pools each hears from two others, whose sums it adds. Terms over other axes are summed first, and under ZeRO a device takes its shard.
// RUN: stagec-opt %s -p 'sum-over-pools{axes="dp" shard_axes="dp" dtype="bf16"}' | filecheck %s

!g = !stg.tensor<[V, D], bf16, partial [dp, tp]>
dist.mesh <dp = 2, tp = 2>
dist.pool "middle" ranks 2 to 6 of 8
dist.shared "embed" first 9 of [left, middle, right]
// CHECK:      %[[TERMS:[^ ]*]] = dist.reshard %g {{.*}}phase = "grad_reduce"{{.*}} -> !stg.tensor<[V, D], bf16, partial [dp]>
// CHECK-NEXT: %[[OWN:[^ ]*]] = dist.all_reduce_gradient(%[[TERMS]]) over [dp] in "bf16" {late,
// CHECK-NEXT: dist.tower_send "tied" 12 to "left" %[[OWN]]
// CHECK-NEXT: dist.tower_send "tied" 14 to "right" %[[OWN]]
// CHECK-NEXT: %[[LEFT:[^ ]*]] = dist.tower_recv "tied" 10 of "left"
// CHECK-NEXT: %[[TWO:[^ ]*]] = stg.add %[[OWN]], %[[LEFT]]
// CHECK-NEXT: %[[RIGHT:[^ ]*]] = dist.tower_recv "tied" 16 of "right"
// CHECK-NEXT: %[[ALL:[^ ]*]] = stg.add %[[TWO]], %[[RIGHT]]
// CHECK-NEXT: %[[SHARD:[^ ]*]] = dist.take_shard(%[[ALL]]) over [dp]
// CHECK-NEXT: stg.output weights %w, %v {{.*}} gradients %[[SHARD]], %h
stg.program "M" () {
  %w = stg.weight "embed" : !stg.tensor<[V, D], bf16>
  %v = stg.weight "own" : !stg.tensor<[V, D], bf16>
  %g = "test.op"() : () -> !g
  %h = "test.op"() : () -> !g
  stg.output weights %w, %v : !stg.tensor<[V, D], bf16>, !stg.tensor<[V, D], bf16> gradients %g, %h : !g, !g
}

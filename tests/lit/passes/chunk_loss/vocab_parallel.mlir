// The steps of a vocab-parallel cross-entropy, their all-reduces and a bias go into the loop; what the loss and the bias get is summed.
// RUN: stagec-opt %s -p 'chunk-loss{chunks=2}' | filecheck %s

stg.dim "S" = "8"
dist.mesh <tp = 2>
// CHECK: stg.dim "loss.chunk" = "2"
stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %t : !stg.tensor<[S], i32>) {
  %w = stg.weight "w" : !stg.tensor<[D, V/tp], bf16>
  %b = stg.weight "b" : !stg.tensor<[V/tp], bf16>
  // CHECK: %[[ZERO:[^ ]*]] = stg.zeros {{.*}} : !stg.tensor<[V/tp], bf16>
  // CHECK-NEXT: %[[DB:[^ ]*]], %[[DXS:[^ ]*]] = stg.repeat "loss.chunk" carry(%[[SUM:[^ ]*]] = %[[ZERO]]
  // CHECK-NEXT: stg.contract {{.*}} : (!stg.tensor<[S/loss.chunk, D], bf16>, {{.*}}) -> !stg.tensor<[S/loss.chunk, V/tp], bf16>
  // CHECK-NEXT: stg.add
  %p = stg.contract %x, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, V/tp], bf16>) -> !stg.tensor<[S, V/tp], bf16>
  %l = stg.add %p, %b : (!stg.tensor<[S, V/tp], bf16>, !stg.tensor<[V/tp], bf16>) -> !stg.tensor<[S, V/tp], bf16>
  // CHECK-NEXT: stg.max_logit
  // CHECK-NEXT: dist.all_reduce "max" {{.*}} !stg.tensor<[S/loss.chunk], fp32>
  %m = stg.max_logit %l {part_of = "cross_entropy"} : (!stg.tensor<[S, V/tp], bf16>) -> !stg.tensor<[S], fp32>
  %gm = dist.all_reduce "max" %m over [tp] {part_of = "cross_entropy"} : !stg.tensor<[S], fp32> -> !stg.tensor<[S], fp32>
  %g = stg.target_logit %l, %t, %gm {part_of = "cross_entropy"}
    : (!stg.tensor<[S, V/tp], bf16>, !stg.tensor<[S], i32>, !stg.tensor<[S], fp32>) -> !stg.tensor<[S], fp32, partial [tp]>
  %gg = dist.all_reduce "sum" %g over [tp] {part_of = "cross_entropy"} : !stg.tensor<[S], fp32, partial [tp]> -> !stg.tensor<[S], fp32>
  %s = stg.sum_exp %l, %gm {part_of = "cross_entropy"} : (!stg.tensor<[S, V/tp], bf16>, !stg.tensor<[S], fp32>) -> !stg.tensor<[S], fp32, partial [tp]>
  %gs = dist.all_reduce "sum" %s over [tp] {part_of = "cross_entropy"} : !stg.tensor<[S], fp32, partial [tp]> -> !stg.tensor<[S], fp32>
  // CHECK: stg.loss_of_statistics
  %loss, %lse = stg.loss_of_statistics %gm, %gg, %gs {part_of = "cross_entropy"}
    : (!stg.tensor<[S], fp32>, !stg.tensor<[S], fp32>, !stg.tensor<[S], fp32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[S], fp32>)
  %one = stg.constant "1" {phase = "bwd"} : !stg.tensor<[], fp32>
  // CHECK-NEXT: %[[DL:[^ ]*]] = stg.cross_entropy_grad
  %dl = stg.cross_entropy_grad %one, %l, %t, %lse {phase = "bwd"}
    : (!stg.tensor<[], fp32>, !stg.tensor<[S, V/tp], bf16>, !stg.tensor<[S], i32>, !stg.tensor<[S], fp32>) -> !stg.tensor<[S, V/tp], bf16>
  // CHECK-NEXT: %[[DXC:[^ ]*]] = stg.contract %[[DL]], %w
  %dx = stg.contract %dl, %w over [V] {phase = "bwd"}
    : (!stg.tensor<[S, V/tp], bf16>, !stg.tensor<[D, V/tp], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  // CHECK-NEXT: %[[DBC:[^ ]*]] = stg.reduce "sum" %[[DL]]
  %db = stg.reduce "sum" %dl over [S] {phase = "wgrad"} : (!stg.tensor<[S, V/tp], bf16>) -> !stg.tensor<[V/tp], bf16>
  // CHECK-NEXT: %[[NEXT:[^ ]*]] = stg.add %[[SUM]], %[[DBC]] {{.*}}in_place
  // CHECK-NEXT: stg.yield %[[NEXT]], %[[DXC]] :
  // CHECK: %[[DX:[^ ]*]] = stg.join_chunks %[[DXS]] dim "S"
  // CHECK-NEXT: dist.reduce_scatter %[[DX]]
  %r = dist.reduce_scatter %dx dim "S" over [tp] {phase = "bwd"} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  // CHECK-NEXT: stg.output weights %b : {{.*}} gradients %[[DB]]
  stg.output weights %b : !stg.tensor<[V/tp], bf16> gradients %db : !stg.tensor<[V/tp], bf16>
}

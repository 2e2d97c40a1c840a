// A frozen weight has no gradient, and what is only in front of it has none either.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, V], bf16>, %c : !stg.tensor<[B], i32>) {
  // CHECK: stg.weight "first" frozen
  %w = stg.weight "first" frozen : !stg.tensor<[V, W], bf16>
  %a = stg.weight "adapter" : !stg.tensor<[W, X], bf16>
  %u = stg.weight "last" frozen : !stg.tensor<[X, U], bf16>
  %h = stg.contract %x, %w over [V] : (!stg.tensor<[B, V], bf16>, !stg.tensor<[V, W], bf16>) -> !stg.tensor<[B, W], bf16>
  %r = stg.contract %h, %a over [W] : (!stg.tensor<[B, W], bf16>, !stg.tensor<[W, X], bf16>) -> !stg.tensor<[B, X], bf16>
  %y = stg.contract %r, %u over [X] : (!stg.tensor<[B, X], bf16>, !stg.tensor<[X, U], bf16>) -> !stg.tensor<[B, U], bf16>
  // CHECK:      stg.cross_entropy_grad
  // CHECK-NEXT: %[[DR:.*]] = stg.contract %{{.*}}, %u over [U] {{.*}}phase = "bwd"
  // CHECK-NEXT: %[[DA:.*]] = stg.contract %[[DR]], %h over [B] {{.*}}phase = "wgrad"
  // CHECK-NEXT: stg.output %{{.*}} weights %a : {{.*}} gradients %[[DA]]
  %loss, %lse = stg.cross_entropy %y, %c
    : (!stg.tensor<[B, U], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
  stg.output %loss : !stg.tensor<[], fp32>
}

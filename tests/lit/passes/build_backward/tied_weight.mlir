// A weight with two readers, a table and a head, has one gradient: the sum.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%t : !stg.tensor<[B], i32>, %c : !stg.tensor<[B], i32>) {
  %w = stg.weight "tied" : !stg.tensor<[V, D], bf16>
  %x = stg.embedding %t, %w : (!stg.tensor<[B], i32>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %l = stg.contract %x, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[V, D], bf16>) -> !stg.tensor<[B, V], bf16>
  %loss, %lse = stg.cross_entropy %l, %c
    : (!stg.tensor<[B, V], bf16>, !stg.tensor<[B], i32>) -> (!stg.tensor<[], fp32>, !stg.tensor<[B], fp32>)
  // CHECK:      %[[DL:[^ ]*]] = stg.cross_entropy_grad %{{.*}}, %l, %c, %lse
  // CHECK:      %[[HEAD:[^ ]*]] = stg.contract %[[DL]], %x over [B] {phase = "wgrad"
  // CHECK:      %[[TABLE:[^ ]*]] = stg.embedding_grad %t, %{{.*}} {phase = "wgrad"
  // CHECK-NEXT: %[[SUM:[^ ]*]] = stg.add %[[HEAD]], %[[TABLE]] {phase = "wgrad"
  // CHECK-NEXT: stg.output {{.*}} gradients %[[SUM]]
  stg.output %loss : !stg.tensor<[], fp32>
}

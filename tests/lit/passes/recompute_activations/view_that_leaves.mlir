// What a checkpoint returns is kept for others, be it a view, and made again for its own backward pass.
// RUN: stagec-opt %s -p 'recompute-activations{what="full" modules="Mlp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %own = stg.unary "exp" %x {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  %made = stg.unary "neg" %own {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK: %[[VIEW:.*]] = stg.rename
  %view = stg.rename %made [B] to [C] {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[C], bf16>
  %y = stg.unary "exp" %view {scope = "Later"} : (!stg.tensor<[C], bf16>) -> !stg.tensor<[C], bf16>
  // CHECK:      stg.mul %[[VIEW]], %{{.*}} scope = "Later"
  %dy = stg.mul %view, %y {phase = "bwd", scope = "Later"} : (!stg.tensor<[C], bf16>, !stg.tensor<[C], bf16>) -> !stg.tensor<[C], bf16>
  // CHECK-NEXT: %[[OWN:.*]] = stg.unary "exp" %x {scope = "Mlp", phase = "recompute"
  // CHECK-NEXT: %[[MADE:.*]] = stg.unary "neg" %[[OWN]] {scope = "Mlp", phase = "recompute"
  // CHECK-NEXT: stg.mul %[[OWN]], %[[MADE]]
  %dx = stg.mul %own, %made {phase = "bwd", scope = "Mlp"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  stg.output
}

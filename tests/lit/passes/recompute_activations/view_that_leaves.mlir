// A view that leaves a call is kept, and with it what it is a view of: they have one storage. What the call reads alone is made again.
// RUN: stagec-opt %s -p 'recompute-activations{what="full" modules="Mlp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  // CHECK: %[[OWN:.*]] = stg.unary "exp" %x
  %own = stg.unary "exp" %x {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK: %[[MADE:.*]] = stg.unary "neg" %[[OWN]]
  %made = stg.unary "neg" %own {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK: %[[VIEW:.*]] = stg.rename %[[MADE]]
  %view = stg.rename %made [B] to [C] {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[C], bf16>
  %y = stg.unary "exp" %view {scope = "Later"} : (!stg.tensor<[C], bf16>) -> !stg.tensor<[C], bf16>
  // CHECK: stg.mul %[[VIEW]], %{{.*}} scope = "Later"
  %dy = stg.mul %view, %y {phase = "bwd", scope = "Later"} : (!stg.tensor<[C], bf16>, !stg.tensor<[C], bf16>) -> !stg.tensor<[C], bf16>
  // CHECK-NEXT: %[[AGAIN:.*]] = stg.unary "exp" %x {scope = "Mlp", phase = "recompute"
  // CHECK-NOT:  phase = "recompute"
  // CHECK:      stg.mul %[[AGAIN]], %[[MADE]]
  %dx = stg.mul %own, %made {phase = "bwd", scope = "Mlp"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  stg.output
}

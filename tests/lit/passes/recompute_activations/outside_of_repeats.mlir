// In named modules ops outside of repeats are repeated too; what leaves a call is kept.
// RUN: stagec-opt %s -p 'recompute-activations{what="full" modules="Mlp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  // CHECK:      %[[IN:.*]] = stg.unary "neg"
  %n = stg.unary "neg" %x : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK-NEXT: %[[FIRST:.*]] = stg.unary "exp" %[[IN]] {scope = "Mlp"}
  %e = stg.unary "exp" %n {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK-NEXT: %[[Y:.*]] = stg.unary "neg" %[[FIRST]]
  %y = stg.unary "neg" %e {scope = "Mlp"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  %z = stg.unary "neg" %y : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK:      %[[DY:.*]] = stg.unary "neg" %[[Y]] {phase = "bwd"}
  %dy = stg.unary "neg" %y {phase = "bwd"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK-NEXT: %[[AGAIN:.*]] = stg.unary "exp" %[[IN]] {scope = "Mlp", phase = "recompute"
  // CHECK-NEXT: stg.mul %[[DY]], %[[AGAIN]]
  %de = stg.mul %dy, %e {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  stg.output
}

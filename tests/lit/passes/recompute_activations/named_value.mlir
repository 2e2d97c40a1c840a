// A value that the plan names is dropped with the unnamed steps that make it, wherever it is.
// RUN: stagec-opt %s -p 'recompute-activations{what="Block.k"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %a = stg.unary "neg" %x {names = ["Block.k"]} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  %k = stg.unary "exp" %a {names = ["q", "Block.k"]} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  %e = stg.unary "exp" %k : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  // CHECK:      %[[DY:.*]] = stg.mul %{{.*}}, %{{.*}} {phase = "bwd"}
  // CHECK-NEXT: %[[A:.*]] = stg.unary "neg" %x {{.*}}phase = "recompute"
  // CHECK-NEXT: %[[K:.*]] = stg.unary "exp" %[[A]] {{.*}}phase = "recompute"
  // CHECK-NEXT: stg.mul %[[DY]], %[[K]]
  %dy = stg.mul %e, %e {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  %dk = stg.mul %dy, %k {phase = "bwd"} : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
  stg.output
}

// `inputs` are what a layer is given; other values stay.
// RUN: stagec-opt %s -p 'offload-activations{what="inputs"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %y, %xs, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
      -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
    // CHECK:      %[[E:[^ ]*]] = stg.unary "exp" %[[IN:[^ ]*]] :
    // CHECK-NEXT: %[[HOST:[^ ]*]] = dist.store(%[[IN]])
    // CHECK-NEXT: stg.yield %[[E]], %[[E]], %[[HOST]] :
    %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %e, %h, %e : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
  }
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
      slice(%s = %xs : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>, %t = %es : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
      -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
    // A value that weight gradients alone read is loaded with them.
    // CHECK: dist.load(%{{[^ ]*}}) {phase = "wgrad"
    %w = stg.mul %s, %dy {phase = "wgrad"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    %d = stg.mul %t, %dy {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    // CHECK-NOT: dist.load
    stg.yield %d : !stg.tensor<[B, D], bf16>
  }
  stg.output
}

// A value is stored when the forward pass is done with it, also with views of it, and loaded before the first reader backward.
// RUN: stagec-opt %s -p 'offload-activations{what="exp" prefetch=2}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: %[[H:[^ ]*]] = stg.repeat "L" carry(%{{[^ ]*}} = %x
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
      -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, F], bf16>>) {
    // CHECK: %[[E:[^ ]*]] = stg.unary "exp"
    %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    %v = stg.rename %e [D] to [F] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, F], bf16>
    %u = stg.unary "neg" %v : (!stg.tensor<[B, F], bf16>) -> !stg.tensor<[B, F], bf16>
    // CHECK:      stg.unary "neg"
    // CHECK-NEXT: %[[HOST:[^ ]*]] = dist.store(%[[E]]) {phase = "fwd"
    // CHECK-NEXT: stg.unary "cos"
    %n = stg.unary "cos" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    // CHECK-NEXT: stg.yield %{{[^ ]*}}, %[[HOST]] :
    stg.yield %n, %v : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, F], bf16>
  }
  // CHECK: stg.repeat "L" reverse
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>)
      slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, F], bf16>>)
      -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
    // CHECK-NEXT: stg.unary "sin"
    %d = stg.unary "sin" %dy {phase = "bwd"} : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    // CHECK-NEXT: %[[L:[^ ]*]] = dist.load(%{{[^ ]*}}) {phase = "bwd", prefetch = 2 : i64
    // CHECK-NEXT: %[[V:[^ ]*]] = stg.rename %[[L]]
    // CHECK-NEXT: stg.unary "tanh" %[[V]]
    %t = stg.unary "tanh" %s {phase = "bwd"} : (!stg.tensor<[B, F], bf16>) -> !stg.tensor<[B, F], bf16>
    stg.yield %d : !stg.tensor<[B, D], bf16>
  }
  stg.output
}

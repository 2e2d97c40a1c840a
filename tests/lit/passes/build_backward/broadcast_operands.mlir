// An operand that was broadcast gets the sum over the dims that it lacks.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %b = stg.weight "b" : !stg.tensor<[D], bf16>
  %y = stg.add %x, %b : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  %z = stg.unary "tanh" %y : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %loss = stg.reduce "sum" %z over [B, D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[], bf16>
  // CHECK: %[[DY:[^ ]*]] = stg.unary_grad "tanh" %{{.*}}, %z
  // CHECK: %[[DB:[^ ]*]] = stg.reduce "sum" %[[DY]] over [B] {phase = "wgrad"
  // CHECK: gradients %[[DB]]
  stg.output %loss : !stg.tensor<[], bf16>
}

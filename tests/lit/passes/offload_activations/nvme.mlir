// What was stored goes on to NVMe, and is read one layer before it is loaded.
// RUN: stagec-opt %s -p 'offload-activations{what="exp" nvme=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
      -> (!stg.tensor<[B, D], bf16>, !stg.stack<"L" x !stg.tensor<[B, D], bf16>>) {
    // CHECK:      %[[E:[^ ]*]] = stg.unary "exp"
    // CHECK-NEXT: %[[HOST:[^ ]*]] = dist.store(%[[E]]) {phase = "fwd"
    // CHECK-NEXT: %[[FAR:[^ ]*]] = dist.write(%[[HOST]]) {phase = "fwd"
    // CHECK-NEXT: stg.yield %[[E]], %[[FAR]] :
    %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %e, %e : !stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>
  }
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B, D], bf16>) slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B, D], bf16>>)
      -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
    // CHECK:      %[[READ:[^ ]*]] = dist.read(%{{[^ ]*}}) {phase = "bwd", prefetch = 2 : i64
    // CHECK-NEXT: %[[HERE:[^ ]*]] = dist.load(%[[READ]]) {phase = "bwd", prefetch = 1 : i64
    // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[HERE]]
    %d = stg.mul %dy, %s {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %d : !stg.tensor<[B, D], bf16>
  }
  stg.output
}

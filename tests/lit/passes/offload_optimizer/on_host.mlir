// The host updates: gradients go there, weights come back as the device has them, and what reads weights after the step reads those.
// RUN: stagec-opt %s -p 'offload-optimizer{on_host=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "head" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], fp32>
  // CHECK:      %[[G:[^ ]*]] = dist.store(%g) {phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: %[[M:[^ ]*]] = dist.state "head" 0 {{.*}} : !stg.tensor<[D], fp32>
  // CHECK-NEXT: %[[C:[^ ]*]] = dist.state "head" 1 {{.*}} : !stg.tensor<[D], fp32>
  // CHECK-NEXT: %[[N:[^ ]*]] = dist.state "head" 2 {{.*}} : !stg.tensor<[D], bf16>
  // CHECK-NEXT: %[[M2:[^ ]*]], %[[C2:[^ ]*]], %[[N2:[^ ]*]] = stg.optimizer_step {{.*}}(%w) from(%[[G]]) with(%[[M]], %[[C]], %[[N]]) {on_host
  // CHECK-NEXT: %[[W:[^ ]*]] = dist.load(%[[N2]]) {home
  stg.optimizer_step "lion" states "fp32" master "fp32" (%w) from (%g) {phase = "optim"} : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
  // CHECK-NEXT: "test.op"(%[[W]])
  "test.op"(%w) : (!stg.tensor<[D], bf16>) -> ()
  stg.output
}

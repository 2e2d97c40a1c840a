// Weights that live on the host are loaded with the moments and the master copy, and stored with them.
// RUN: stagec-opt %s -p 'offload-optimizer{parameters=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "head" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], fp32>
  // CHECK:      %[[M:[^ ]*]] = dist.state "head" 0 {{.*}} : !stg.tensor<[D], fp32>
  // CHECK-NEXT: %[[V:[^ ]*]] = dist.state "head" 1 {{.*}} : !stg.tensor<[D], fp32>
  // CHECK-NEXT: %[[C:[^ ]*]] = dist.state "head" 2 {{.*}} : !stg.tensor<[D], fp32>
  // CHECK-NEXT: %[[W1:[^ ]*]], %[[M1:[^ ]*]], %[[V1:[^ ]*]], %[[C1:[^ ]*]] = dist.load(%w, %[[M]], %[[V]], %[[C]]) {apart
  // CHECK-NEXT: %[[W2:[^ ]*]], %[[M2:[^ ]*]], %[[V2:[^ ]*]], %[[C2:[^ ]*]] = stg.optimizer_step {{.*}}(%[[W1]]) from(%g) with(%[[W1]], %[[M1]], %[[V1]], %[[C1]])
  // CHECK-NEXT: dist.store(%[[W2]], %[[M2]], %[[V2]], %[[C2]])
  stg.optimizer_step "adamw" states "fp32" master "fp32" (%w) from (%g) {phase = "optim"} : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
  stg.output
}

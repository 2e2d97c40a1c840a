// States on NVMe are read into the host's memory for its update, and written back; gradients wait there for it; the new weights never are there.
// RUN: stagec-opt %s -p 'offload-optimizer{on_host=true states_on_nvme=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "head" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], fp32>
  // CHECK:      %[[G:[^ ]*]] = dist.store(%g) {phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: %[[F:[^ ]*]] = dist.write(%[[G]]) {phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: %[[M:[^ ]*]] = dist.state "head" 0
  // CHECK-NEXT: %[[C:[^ ]*]] = dist.state "head" 1
  // CHECK-NEXT: %[[N:[^ ]*]] = dist.state "head" 2
  // CHECK-NEXT: %[[M1:[^ ]*]], %[[C1:[^ ]*]], %[[G1:[^ ]*]] = dist.read(%[[M]], %[[C]], %[[F]]) {apart
  // CHECK-NEXT: %[[M2:[^ ]*]], %[[C2:[^ ]*]], %[[N2:[^ ]*]] = stg.optimizer_step {{.*}}(%w) from(%[[G1]]) with(%[[M1]], %[[C1]], %[[N]]) {on_host
  // CHECK-NEXT: dist.write(%[[M2]], %[[C2]])
  // CHECK-NEXT: dist.load(%[[N2]]) {home
  stg.optimizer_step "lion" states "fp32" master "fp32" (%w) from (%g) {phase = "optim"} : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
  stg.output
}

// Weights on NVMe: an update on the device reads and writes them around the host's memory; the host's update writes narrow ones, which it does not read.
// RUN: stagec-opt %s -p 'offload-optimizer{states=false parameters=true parameters_on_nvme=true}' | filecheck %s
// RUN: stagec-opt %s -p 'offload-optimizer{on_host=true parameters=true parameters_on_nvme=true}' | filecheck %s --check-prefix HOST

stg.program "M" () {
  %w = stg.weight "head" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], fp32>
  // CHECK:      %[[R:[^ ]*]] = dist.read(%w) {apart
  // CHECK-NEXT: %[[L:[^ ]*]] = dist.load(%[[R]]) {apart
  // CHECK-NEXT: %[[U:[^ ]*]] = stg.optimizer_step {{.*}}(%[[L]]) from(%g) with(%[[L]])
  // CHECK-NEXT: %[[S:[^ ]*]] = dist.store(%[[U]])
  // CHECK-NEXT: dist.write(%[[S]])
  // HOST:      %[[M:[^ ]*]] = dist.state "head" 0
  // HOST-NEXT: %[[C:[^ ]*]] = dist.state "head" 1
  // HOST-NEXT: %[[N:[^ ]*]] = dist.state "head" 2
  // HOST-NOT:  dist.read
  // HOST:      %[[M2:[^ ]*]], %[[C2:[^ ]*]], %[[N2:[^ ]*]] = stg.optimizer_step {{.*}}with(%[[M]], %[[C]], %[[N]]) {on_host
  // HOST-NEXT: dist.write(%[[N2]])
  // HOST-NOT:  dist.load
  stg.optimizer_step "lion" states "fp32" master "fp32" (%w) from (%g) {phase = "optim"} : !stg.tensor<[D], bf16> from !stg.tensor<[D], fp32>
  stg.output
}

// On NVMe they are read into the memory of the host one layer before they are loaded; outside of layers both when they are due.
// RUN: stagec-opt %s -p 'offload-parameters{prefetch=2 nvme=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %ws = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %v = stg.weight "v" : !stg.tensor<[D], bf16>
  // CHECK:      %[[R:[^ ]*]] = dist.read(%v) {phase = "fwd", apart
  // CHECK-NEXT: %[[V:[^ ]*]] = dist.load(%[[R]]) {phase = "fwd", apart
  // CHECK-NEXT: stg.mul %x, %[[V]]
  %z = stg.mul %x, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  %y = stg.repeat "L" carry(%h = %z : !stg.tensor<[B, D], bf16>)
      slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
    // CHECK:      %[[N:[^ ]*]] = dist.read(%w) {phase = "fwd", prefetch = 3 : i64
    // CHECK-NEXT: %[[W:[^ ]*]] = dist.load(%[[N]]) {phase = "fwd", prefetch = 2 : i64
    // CHECK-NEXT: stg.mul %h, %[[W]]
    %m = stg.mul %h, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %m : !stg.tensor<[B, D], bf16>
  }
  stg.output
}

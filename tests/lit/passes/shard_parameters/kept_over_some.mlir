// What is freed stays split over one of two axes, and the backward pass gathers it from there.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="node","dp" gather="bf16" reshard_over="dp" one_unit=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: stg.weight "w" : !dist.shard<!stg.tensor<[D], fp32> over [node, dp]>
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  stg.accumulate over "mb" {
    // CHECK:      %[[WHOLE:[^ ]*]] = dist.unshard(%w) over [node, dp] in "bf16" {phase = "fwd"
    // CHECK-NEXT: stg.mul %x, %[[WHOLE]]
    // CHECK-NEXT: %[[PART:[^ ]*]] = dist.keep_shard(%[[WHOLE]]) over [dp]
    // CHECK-SAME: over [dp] within [node]>
    // CHECK-NEXT: %[[AGAIN:[^ ]*]] = dist.unshard(%[[PART]]) over [dp] in "bf16" {phase = "bwd"
    // CHECK-NEXT: stg.mul %y, %[[AGAIN]]
    %y = stg.mul %x, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    %z = stg.mul %y, %w {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield
  }
  stg.output
}

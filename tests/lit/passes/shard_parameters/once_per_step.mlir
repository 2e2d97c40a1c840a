// Gathered once per step, weights are there before the first microbatch.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" once_per_step=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  // CHECK:      %[[WHOLE:[^ ]*]] = dist.unshard(%w)
  // CHECK-NEXT: stg.accumulate
  // CHECK-NEXT: stg.mul %x, %[[WHOLE]]
  stg.accumulate over "mb" {
    %y = stg.mul %x, %w : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    // CHECK-NOT:  dist.unshard
    // CHECK:      stg.mul %{{[^ ]*}}, %[[WHOLE]]
    %z = stg.mul %y, %w {phase = "bwd"} : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    stg.yield
  }
  stg.output
}

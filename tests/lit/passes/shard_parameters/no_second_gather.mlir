// Kept after the forward pass, weights are not gathered again.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" reshard=false one_unit=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  // CHECK:     %[[WHOLE:[^ ]*]] = dist.unshard(%w)
  // CHECK-NOT: dist.unshard
  // CHECK:     stg.mul %x, %[[WHOLE]]
  // CHECK:     stg.mul %y, %[[WHOLE]]
  stg.accumulate over "mb" {
    %y = stg.mul %x, %w : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    %z = stg.mul %y, %w {phase = "bwd"} : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    stg.yield
  }
  stg.output
}

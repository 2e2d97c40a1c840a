// Where stages of a rank take turns, all units of a stage are gathered in its turn, and marked so.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" once_per_step=true evicted=true reshard=false}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  // CHECK:     %[[WHOLE:[^ ]*]] = dist.unshard(%w) {{.*}}evicted{{.*}}unit = 0
  // CHECK:     stg.accumulate
  // CHECK-NEXT:  stg.mul %x, %[[WHOLE]]
  // CHECK-NOT: dist.unshard
  stg.accumulate over "mb" {
    %u = stg.mul %x, %w : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    %du = stg.mul %u, %w {phase = "bwd"} : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    stg.yield
  }
  stg.output
}

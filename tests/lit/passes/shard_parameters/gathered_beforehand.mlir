// Where a rank has several stages, all units are there when the first microbatch begins, those that are freed later too.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" once_per_step=true}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp32>) {
  %ws = stg.weight "ws" : !stg.stack<"2" x !stg.tensor<[D], fp32>>
  %w = stg.weight "w" : !stg.tensor<[D], fp32>
  // CHECK:     dist.unshard(%w)
  // CHECK-NOT: issued
  // CHECK:     stg.repeat "2"
  // CHECK-NEXT:  dist.unshard({{.*}}unit = 0
  // CHECK:     stg.accumulate
  // CHECK:         dist.unshard({{.*}}unit = 0
  // CHECK:         dist.unshard({{.*}}unit = 0
  // CHECK-NOT: dist.unshard
  stg.accumulate over "mb" {
    %y = stg.repeat "2" carry(%h = %x : !stg.tensor<[B, D], fp32>) slice(%v = %ws : !stg.stack<"2" x !stg.tensor<[D], fp32>>) -> (!stg.tensor<[B, D], fp32>) {
      %z = stg.mul %h, %v : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
      stg.yield %z : !stg.tensor<[B, D], fp32>
    }
    %u = stg.mul %y, %w : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    %du = stg.mul %u, %w {phase = "bwd"} : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
    %dy = stg.repeat "2" reverse carry(%h = %du : !stg.tensor<[B, D], fp32>) slice(%v = %ws : !stg.stack<"2" x !stg.tensor<[D], fp32>>) -> (!stg.tensor<[B, D], fp32>) attributes {phase = "bwd"} {
      %z = stg.mul %h, %v {phase = "bwd"} : (!stg.tensor<[B, D], fp32>, !stg.tensor<[D], fp32>) -> !stg.tensor<[B, D], fp32>
      stg.yield %z : !stg.tensor<[B, D], fp32>
    }
    stg.yield
  }
  stg.output
}

// A layer's weights are gathered once for each direction.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" gather="bf16"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: stg.weight "Block.w" : !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>
  %w = stg.weight "Block.w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  stg.accumulate over "mb" {
    // CHECK:      stg.repeat "L" carry
    // CHECK-NEXT: %[[FWD:[^ ]*]] = dist.unshard{{.*}}phase = "fwd"
    // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[FWD]]
    %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
      %n = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %n : !stg.tensor<[B, D], bf16>
    }
    // CHECK:      stg.repeat "L" reverse
    // CHECK-NEXT: %[[BWD:[^ ]*]] = dist.unshard{{.*}}phase = "bwd"
    // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[BWD]]
    %dx = stg.repeat "L" reverse carry(%dh = %y : !stg.tensor<[B, D], bf16>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
      %n = stg.mul %dh, %v {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %n : !stg.tensor<[B, D], bf16>
    }
    stg.yield
  }
  stg.output
}

// Without a backward pass what waits for it is stored whole: the root, but no layer.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" gather="bf16"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  // CHECK: stg.weight "Block.w" : !stg.stack<"L" x !dist.shard<!stg.tensor<[D], fp32> over [dp]>>
  // CHECK: %[[ROOT:[^ ]*]] = stg.weight "norm" : !stg.tensor<[D], bf16>
  %w = stg.weight "Block.w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %norm = stg.weight "norm" : !stg.tensor<[D], bf16>
  stg.accumulate over "mb" {
    // CHECK:      stg.repeat "L" carry
    // CHECK-NEXT: dist.unshard
    %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
      %n = stg.mul %h, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %n : !stg.tensor<[B, D], bf16>
    }
    // CHECK-NOT: dist.unshard
    // CHECK:     stg.mul %{{[^ ]*}}, %[[ROOT]]
    %z = stg.mul %y, %norm : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield
  }
  stg.output
}

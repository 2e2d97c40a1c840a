// The cotangent of a captured value that was gathered is summed as it is, and moved back once, after the repeat.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D/tp], bf16>
  %g = dist.reshard %w : !stg.tensor<[D/tp], bf16> -> !stg.tensor<[D], bf16>
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
    %n = stg.mul %h, %g : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %n : !stg.tensor<[B, D], bf16>
  }
  %loss = stg.reduce "sum" %y over [B, D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[], bf16>
  // CHECK:      stg.zeros {{.*}} : !stg.tensor<[D], bf16>
  // CHECK-NEXT: %{{.*}}, %[[DG:[^ ]*]] = stg.repeat "L" reverse
  // CHECK-NOT:    dist.reshard
  // CHECK:        stg.yield
  // CHECK-NEXT: }
  // CHECK-NEXT: %[[DW:[^ ]*]] = dist.reshard %[[DG]] {{.*}} : !stg.tensor<[D], bf16> -> !stg.tensor<[D/tp], bf16>
  // CHECK-NEXT: stg.output {{.*}} gradients %[[DW]]
  stg.output %loss : !stg.tensor<[], bf16>
}

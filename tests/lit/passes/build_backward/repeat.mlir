// A repeat gets one in reverse. It slices what the first one saves: what gradients read, and no more.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %ws = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  // CHECK: %y, %[[SAVED:[^ ]*]] = stg.repeat "L" carry(%h = %x : {{.*}}) slice(%w = %ws
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
    %a = stg.mul %h, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    %b = stg.add %a, %h : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
    // CHECK: stg.yield %b, %h
    stg.yield %b : !stg.tensor<[B, D], bf16>
  }
  %loss = stg.reduce "sum" %y over [B, D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[], bf16>
  // CHECK:      %[[DY:[^ ]*]] = stg.broadcast
  // CHECK-NEXT: %{{.*}}, %[[DWS:[^ ]*]] = stg.repeat "L" reverse carry(%[[DB:[^ ]*]] = %[[DY]] : {{.*}}) slice(%[[W:[^ ]*]] = %ws : {{.*}}, %[[H:[^ ]*]] = %[[SAVED]]
  // CHECK-NEXT:   %[[THROUGH:[^ ]*]] = stg.mul %[[DB]], %[[W]]
  // CHECK-NEXT:   %[[PRODUCT:[^ ]*]] = stg.mul %[[DB]], %[[H]] {phase = "wgrad"
  // CHECK-NEXT:   %[[DW:[^ ]*]] = stg.reduce "sum" %[[PRODUCT]] over [B] {phase = "wgrad"
  // CHECK-NEXT:   %[[DH:[^ ]*]] = stg.add %[[DB]], %[[THROUGH]]
  // CHECK-NEXT:   stg.yield %[[DH]], %[[DW]]
  // CHECK:      gradients %[[DWS]] : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  stg.output %loss : !stg.tensor<[], bf16>
}

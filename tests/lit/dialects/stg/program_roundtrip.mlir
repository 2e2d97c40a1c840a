// A model: its inputs, its attributes, its body.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: stg.program "GPT 2" (%tokens: !stg.tensor<[B, S], i32>, %x: !stg.tensor<[B], bf16>) attributes {kind = "training"} {
stg.program "GPT 2" (%tokens : !stg.tensor<[B, S], i32>, %x : !stg.tensor<[B], bf16>) attributes {kind = "training"} {
  // CHECK-NEXT: stg.output %x
  stg.output %x : !stg.tensor<[B], bf16>
  // CHECK-NEXT: }
}

// CHECK: stg.program "empty" () {
stg.program "empty" () {
  stg.output
}

// What no weight is behind gets no gradient, and a weight that the loss does not see neither.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %u = stg.weight "unused" : !stg.tensor<[D], bf16>
  %h = stg.unary "exp" %x : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %y = stg.contract %h, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B], bf16>
  %loss = stg.reduce "sum" %y over [B] : (!stg.tensor<[B], bf16>) -> !stg.tensor<[], bf16>
  // CHECK:      stg.constant "1"
  // CHECK-NEXT: stg.broadcast
  // CHECK-NEXT: stg.contract {{.*}}, %h over [B]
  // CHECK-NEXT: stg.output %loss {{.*}} weights %w
  // CHECK-NOT:  %u
  stg.output %loss : !stg.tensor<[], bf16>
}

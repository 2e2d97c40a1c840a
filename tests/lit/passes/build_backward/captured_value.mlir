// A value from outside that a repeat reads: its cotangent is a sum over the iterations, carried from zero.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %e = stg.unary "exp" %w : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) -> (!stg.tensor<[B, D], bf16>) {
    %n = stg.mul %h, %e : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %n : !stg.tensor<[B, D], bf16>
  }
  %loss = stg.reduce "sum" %y over [B, D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[], bf16>
  // CHECK:      %[[ZEROS:[^ ]*]] = stg.zeros {{.*}} : !stg.tensor<[D], bf16>
  // CHECK-NEXT: %{{.*}}, %[[DE:[^ ]*]] = stg.repeat "L" reverse carry({{.*}}, %[[SUM:[^ ]*]] = %[[ZEROS]] : !stg.tensor<[D], bf16>)
  // CHECK:        %[[TERM:[^ ]*]] = stg.reduce "sum" {{.*}} over [B]
  // CHECK:        %[[NEXT:[^ ]*]] = stg.add %[[SUM]], %[[TERM]]
  // CHECK-NEXT:   stg.yield %{{.*}}, %[[NEXT]]
  // CHECK:      stg.unary_grad "exp" %[[DE]], %e
  stg.output %loss : !stg.tensor<[], bf16>
}

// The gradients of a contraction are contractions with the other operand; the weight's is of another phase.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" () {
  %a, %b = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[F], bf16>)
  %v = stg.weight "v" : !stg.tensor<[D], bf16>
  %w = stg.weight "w" : !stg.tensor<[D, F], bf16>
  %x = stg.mul %a, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  %y = stg.contract %x, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F], bf16>) -> !stg.tensor<[B, F], bf16>
  %loss = stg.reduce "sum" %y over [B, F] : (!stg.tensor<[B, F], bf16>) -> !stg.tensor<[], bf16>
  // CHECK:      %[[DY:[^ ]*]] = stg.broadcast {{.*}} -> !stg.tensor<[B, F], bf16>
  // CHECK-NEXT: %[[DX:[^ ]*]] = stg.contract %[[DY]], %w over [F] {{.*}} -> !stg.tensor<[B, D], bf16>
  // CHECK-NEXT: %[[DW:[^ ]*]] = stg.contract %[[DY]], %x over [B] {phase = "wgrad", {{.*}} -> !stg.tensor<[D, F], bf16>
  // CHECK:      stg.output {{.*}} weights %v, %w : {{.*}} gradients %{{.*}}, %[[DW]]
  stg.output %loss : !stg.tensor<[], bf16>
}

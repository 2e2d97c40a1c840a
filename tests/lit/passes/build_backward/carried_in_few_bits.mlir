// What goes back through layers is in the dtype that they carry, also where a cast from few bits in a layer leaves it as it is.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], fp8>) {
  %ws = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %v = stg.weight "v" : !stg.tensor<[D], fp8>
  %in = stg.mul %x, %v : (!stg.tensor<[B, D], fp8>, !stg.tensor<[D], fp8>) -> !stg.tensor<[B, D], fp8>
  %y = stg.repeat "L" carry(%h = %in : !stg.tensor<[B, D], fp8>) slice(%w = %ws : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], fp8>) {
    %a = stg.cast %h : (!stg.tensor<[B, D], fp8>) -> !stg.tensor<[B, D], bf16>
    %b = stg.mul %a, %w : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    %c = stg.cast %b : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], fp8>
    stg.yield %c : !stg.tensor<[B, D], fp8>
  }
  %loss = stg.reduce "sum" %y over [B, D] : (!stg.tensor<[B, D], fp8>) -> !stg.tensor<[], fp8>
  // CHECK:      stg.repeat "L" reverse carry(%[[DC:[^ ]*]] = %{{.*}} : !stg.tensor<[B, D], fp8>)
  // CHECK:        %[[DH:[^ ]*]] = stg.cast %{{.*}} {phase = "bwd"{{.*}} -> !stg.tensor<[B, D], fp8>
  // CHECK:        stg.yield %[[DH]], %{{.*}} : !stg.tensor<[B, D], fp8>, !stg.tensor<[D], bf16>
  stg.output %loss : !stg.tensor<[], fp8>
}

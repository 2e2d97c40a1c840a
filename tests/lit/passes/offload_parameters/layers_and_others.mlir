// The parameters of a layer are one load, in each direction; others are loaded alone when they are due. The update is not touched.
// RUN: stagec-opt %s -p 'offload-parameters{prefetch=2}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %head = stg.weight "head" : !stg.tensor<[D], bf16>
  %as = stg.weight "a" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %bs = stg.weight "b" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>)
      slice(%a = %as : !stg.stack<"L" x !stg.tensor<[D], bf16>>, %b = %bs : !stg.stack<"L" x !stg.tensor<[D], bf16>>)
      -> (!stg.tensor<[B, D], bf16>) {
    // CHECK:      %[[A:[^ ]*]], %[[B:[^ ]*]] = dist.load(%{{[^ ]*}}, %{{[^ ]*}}) {phase = "fwd", prefetch = 2 : i64
    // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[A]]
    // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[B]]
    %m = stg.mul %h, %a : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    %n = stg.mul %m, %b : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %n : !stg.tensor<[B, D], bf16>
  }
  // CHECK:      %[[HEAD:[^ ]*]] = dist.load(%head) {phase = "fwd", apart
  // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[HEAD]]
  %o = stg.mul %y, %head : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  // CHECK:      %[[AGAIN:[^ ]*]] = dist.load(%head) {phase = "bwd", apart
  // CHECK-NEXT: stg.mul %{{[^ ]*}}, %[[AGAIN]] {phase = "bwd"}
  %d = stg.mul %o, %head {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
  // CHECK-NEXT: stg.optimizer_step "sgd" states "fp32"(%head)
  stg.optimizer_step "sgd" states "fp32" (%head) from (%head) {phase = "optim"} : !stg.tensor<[D], bf16> from !stg.tensor<[D], bf16>
  stg.output
}

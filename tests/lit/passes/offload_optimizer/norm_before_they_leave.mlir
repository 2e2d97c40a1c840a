// Gradients leave layer by layer, the last layer first; each leaves a term of the norm behind.
// RUN: stagec-opt %s -p 'offload-optimizer{on_host=true}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %v = stg.weight "v" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D], fp32>>
  %h = "test.op"() : () -> !stg.tensor<[D], fp32>
  // CHECK:      %[[GONE:[^ ]*]], %[[TERMS:[^ ]*]] = stg.repeat "L" reverse slice(%[[G:[^ ]*]] = %g :
  // CHECK-NEXT: %[[T:[^ ]*]] = stg.gradient_statistic "norm"(%[[G]]) {unscaled, phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: %[[S:[^ ]*]] = dist.store(%[[G]]) {phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: stg.yield %[[S]], %[[T]] :
  // CHECK:      %[[TERM:[^ ]*]] = stg.gradient_statistic "norm"(%h) {unscaled, phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: dist.store(%h) {phase = "grad_reduce"{{.*}} leaves
  // CHECK-NEXT: %[[ALL:[^ ]*]] = stg.gradient_statistic "norm"(%[[TERMS]], %[[TERM]]) {phase = "optim"
  // CHECK-SAME: -> !stg.tensor<[], fp32, partial [dp]>
  // CHECK-NEXT: dist.all_reduce "sum" %[[ALL]]
  // CHECK:      stg.optimizer_step {{.*}}scales
  %t = stg.gradient_statistic "norm" (%g, %h) {phase = "optim"} : (!stg.stack<"L" x !stg.tensor<[D], fp32>>, !stg.tensor<[D], fp32>) -> !stg.tensor<[], fp32, partial [dp]>
  %n = dist.all_reduce "sum" %t over [dp] {phase = "optim"} : !stg.tensor<[], fp32, partial [dp]> -> !stg.tensor<[], fp32>
  stg.optimizer_step "lion" states "fp32" master "fp32" (%w, %v) from (%g, %h) scaled by %n : !stg.tensor<[], fp32> {phase = "optim"}
    : !stg.stack<"L" x !stg.tensor<[D], bf16>>, !stg.tensor<[D], bf16> from !stg.stack<"L" x !stg.tensor<[D], fp32>>, !stg.tensor<[D], fp32>
  stg.output
}

// One step updates all weights, those of layers too.
// RUN: stagec-opt %s -p 'insert-optimizer{algorithm="adamw" states="fp32" master="fp32"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %v = stg.weight "v" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %g, %h = "test.op"() : () -> (!stg.tensor<[D], fp32>, !stg.stack<"L" x !stg.tensor<[D], fp32>>)
  // CHECK: stg.optimizer_step "adamw" states "fp32" master "fp32"(%w, %v) from(%g, %h)
  // CHECK-NOT: stg.optimizer_step
  stg.output weights %w, %v : !stg.tensor<[D], bf16>, !stg.stack<"L" x !stg.tensor<[D], bf16>>
    gradients %g, %h : !stg.tensor<[D], fp32>, !stg.stack<"L" x !stg.tensor<[D], fp32>>
}

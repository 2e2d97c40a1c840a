// Without a master copy the weights themselves are updated.
// RUN: stagec-opt %s -p 'insert-optimizer{algorithm="adamw" states="bf16"}' | filecheck %s

stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !stg.tensor<[D], bf16>
  // CHECK-NOT: master
  // CHECK: stg.optimizer_step "adamw" states "bf16"(%w)
  // CHECK-NOT: master
  stg.output weights %w : !stg.tensor<[D], bf16> gradients %g : !stg.tensor<[D], bf16>
}

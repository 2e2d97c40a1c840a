// Without state and without parameters on the host the update stays as it is.
// RUN: stagec-opt %s -p 'offload-optimizer' | filecheck %s

stg.program "M" () {
  %w, %g = "test.op"() : () -> (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>)
  // CHECK-NOT: dist.
  // CHECK: stg.optimizer_step "sgd" states "fp32"(%w) from(%g) {phase = "optim"} :
  stg.optimizer_step "sgd" states "fp32" (%w) from (%g) {phase = "optim"} : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>
  stg.output
}

// Steps of other optimizers stay as they are.
// RUN: stagec-opt %s -p precondition-updates | filecheck %s

stg.program "M" () {
  %w, %g = "test.op"() : () -> (!stg.tensor<[D], fp32>, !stg.tensor<[D], fp32>)
  // CHECK-NOT: stg.precondition
  // CHECK:     stg.optimizer_step "adamw" states "fp32"(%w) from(%g)
  stg.optimizer_step "adamw" states "fp32" (%w) from (%g) : !stg.tensor<[D], fp32> from !stg.tensor<[D], fp32>
  stg.output
}

// Below level 3 the step updates a rank's shard, and weights are gathered after it.
// RUN: stagec-opt %s -p 'shard-parameters{level=1 axes="dp" gather="bf16"}' | filecheck %s

stg.program "M" () {
  // CHECK: stg.weight "w" : !stg.tensor<[D], bf16>
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %g = "test.op"() : () -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
  // CHECK:      %[[SHARD:[^ ]*]] = dist.take_shard(%w)
  // CHECK-NEXT: stg.optimizer_step {{.*}}(%[[SHARD]]) from(%g)
  // CHECK-NEXT: dist.unshard(%[[SHARD]]) over [dp] in "bf16"
  stg.optimizer_step "adamw" states "fp32" master "fp32" (%w) from (%g) {phase = "optim"}
    : !stg.tensor<[D], bf16> from !dist.shard<!stg.tensor<[D], fp32> over [dp]>
  stg.output
}

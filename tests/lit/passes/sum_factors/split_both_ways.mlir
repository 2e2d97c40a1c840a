// Rows and columns over axes of their own: each has its sums, and both their lengths. What is clipped is read scaled; another optimizer has no factors.
// RUN: stagec-opt %s -p sum-factors --split-input-file | filecheck %s

!t = !stg.tensor<[D/a, F/b], fp32>
dist.mesh <a = 2, b = 2>
stg.program "M" (%c : !stg.tensor<[], fp32>) {
  %w = stg.weight "w" : !t
  %g = "test.op"() : () -> !t
  // CHECK: %[[C:.*]] = stg.gradient_statistic "factors"(%g, %c)
  // CHECK-SAME: -> !stg.stack<"1 + D/a" x !stg.tensor<[], fp32, partial [b]>>
  // CHECK: %[[CC:.*]] = dist.all_reduce_gradient(%[[C]]) over [b] in "fp32"
  // CHECK: %[[R:.*]] = stg.gradient_statistic "factors"(%g, %[[CC]])
  // CHECK-SAME: -> !stg.stack<"F/b" x !stg.tensor<[], fp32, partial [a]>>
  // CHECK: dist.all_reduce_gradient(%[[R]]) over [a] in "fp32"
  // CHECK: -> !stg.stack<"2" x !stg.tensor<[], fp32, partial [a, b]>>
  // CHECK: %[[L:.*]] = dist.all_reduce_gradient(%{{.*}}) over [a, b] in "fp32"
  // CHECK: stg.optimizer_step "adafactor" {{.*}} scaled by %[[L]] :
  stg.optimizer_step "adafactor" states "fp32" matrices [#stg.matrix<[D] x [F]>] (%w) from (%g) scaled by %c : !stg.tensor<[], fp32> {phase = "optim"} : !t from !t
  stg.output
}

// -----

// CHECK: "lion"
// CHECK-NOT: gradient_statistic
!t = !stg.tensor<[D/a], fp32>
dist.mesh <a = 2>
stg.program "M" () {
  %w = stg.weight "w" : !t
  %g = "test.op"() : () -> !t
  stg.optimizer_step "lion" states "fp32" (%w) from (%g) {phase = "optim"} : !t from !t
  stg.output
}

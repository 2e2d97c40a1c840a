// A plan that is made again takes the place of the one before.
// RUN: stagec-opt %s -p plan-memory,plan-memory{gradients="copied"} | filecheck %s
stg.dim "D" = "8"
dist.mesh <dp = 1>
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  stg.output
}
// CHECK: sched.stored of "" {
// CHECK-NEXT: "w" parameters "2*D"
// CHECK-NEXT: }
// CHECK-NOT: sched.stored

// Collectives along an axis of one rank are views: nothing moves.
// RUN: stagec-opt %s -p lower-to-tasks | filecheck %s

dist.mesh <dp = 1, tp = 2>
stg.program "M" (%x : !stg.tensor<[B/dp, D], bf16>) {
  // CHECK:     sched.view %x
  // CHECK-NOT: sched.collective
  %g = dist.all_gather %x dim "B" over [dp] : !stg.tensor<[B/dp, D], bf16> -> !stg.tensor<[B, D], bf16>
  stg.output %g : !stg.tensor<[B, D], bf16>
}

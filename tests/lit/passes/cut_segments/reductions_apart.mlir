// A reduction that may join a bucket, or a gather that is issued ahead, is a segment by itself.
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
dist.mesh <dp = 2>
stg.program "M" (%x : !t, %y : !t) {
  // CHECK: sched.collective "all_reduce"{{.*}} in step.0
  %a = sched.collective "all_reduce" (%x) over [dp] in "bf16" bytes "B" to "B" on "comm.dp" bucket 8 first 8 {phase = "grad_reduce"} : (!t) -> !t
  // CHECK: sched.collective "all_reduce"{{.*}} in step.1
  %b = sched.collective "all_reduce" (%y) over [dp] in "bf16" bytes "B" to "B" on "comm.dp" bucket 8 first 8 {phase = "grad_reduce"} : (!t) -> !t
  stg.output
}

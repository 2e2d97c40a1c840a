// What sums in whole buffers comes when all buckets are reduced, those too that it reads nothing of.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2, tp = 2>
stg.program "M" (%g : !t, %h : !t) {
  %a = sched.collective "all_reduce" (%g) over [dp] in "bf16" bytes "16" to "16" on "comm.dp" bucket 64 first 64 in step.0 {phase = "grad_reduce"} : (!t) -> !t
  %b = sched.collective "all_reduce" (%h) over [tp] in "bf16" bytes "16" to "16" on "comm.tp" in step.1 {phase = "grad_reduce", of_whole, late} : (!t) -> !t
  %c = sched.collective "all_reduce" (%h) over [dp] in "bf16" bytes "16" to "16" on "comm.dp" bucket 64 first 64 in step.2 {phase = "grad_reduce"} : (!t) -> !t
  stg.output
}
// CHECK: step = "0 1 2"
sched.tasks @model of "" layers {} {
  step = "0 1 2"
}

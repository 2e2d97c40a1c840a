// A reduction that names no size of a bucket is one of its own.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.stack<"6" x !t>) {
  %s = stg.repeat "6" slice(%t = %g : !stg.stack<"6" x !t>) -> (!stg.stack<"6" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" in step.0 {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  stg.output
}
// CHECK: step = "(0@0+1)*6"
sched.tasks @model of "" layers {} {
  step = "(0@0+1)*6"
}

// Buckets of one size end where those of another begin.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.stack<"3" x !t>, %h : !t) {
  %s = stg.repeat "3" slice(%t = %g : !stg.stack<"3" x !t>) -> (!stg.stack<"3" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 480 first 480 in step.0 {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  %u = sched.collective "all_reduce" (%h) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 1 first 1 in step.1 {phase = "grad_reduce"} : (!t) -> !t
  sched.compute "optimizer_step" (%s, %u) flops "B" reads "B" writes "B" on "compute" in step.2 {phase = "optim"} : (!stg.stack<"3" x !t>, !t) -> ()
  stg.output
}
// CHECK: step = "0@0 ~0@1 1 0@2 2"
sched.tasks @model of "" layers {} {
  step = "0@0 0@1 1 0@2 2"
}

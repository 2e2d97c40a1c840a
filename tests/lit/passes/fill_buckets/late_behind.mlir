// Reductions that go after the backward pass come behind the others, and may share a bucket with the last of them.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.stack<"3" x !t>, %h : !stg.stack<"3" x !t>) {
  %s, %u = stg.repeat "3" slice(%t = %g : !stg.stack<"3" x !t>, %v = %h : !stg.stack<"3" x !t>) -> (!stg.stack<"3" x !t>, !stg.stack<"3" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 32 first 32 in step.0 {phase = "grad_reduce"} : (!t) -> !t
    %q = sched.collective "all_reduce" (%v) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 32 first 32 in step.1 {phase = "grad_reduce", late} : (!t) -> !t
    stg.yield %r, %q : !t, !t
  }
  sched.compute "optimizer_step" (%s, %u) flops "B" reads "B" writes "B" on "compute" in step.2 {phase = "optim"} : (!stg.stack<"3" x !t>, !stg.stack<"3" x !t>) -> ()
  stg.output
}
// CHECK: step = "0@0 ~0@1 0@2 ~1@0 1@1 ~1@2 2"
sched.tasks @model of "" layers {} {
  step = "(0@0+1 1@0+1)*3 2"
}

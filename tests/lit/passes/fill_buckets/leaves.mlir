// What leaves for the host needs no bucket to be issued early: it stands behind all of them.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.stack<"5" x !t>, %l : !stg.stack<"2" x !t>) {
  %s = stg.repeat "5" slice(%t = %g : !stg.stack<"5" x !t>) -> (!stg.stack<"5" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 32 first 32 in step.0 {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  %u = stg.repeat "2" slice(%t = %l : !stg.stack<"2" x !t>) -> (!stg.stack<"2" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 32 first 32 in step.1 {phase = "grad_reduce", late} : (!t) -> !t
    stg.yield %r : !t
  }
  %o = stg.repeat "2" slice(%t = %u : !stg.stack<"2" x !t>) -> (!stg.stack<"2" x !t>) {
    %c = sched.host_copy "store" (%t) bytes "2*B" on "host.store" in step.2 {phase = "grad_reduce", leaves, apart} : (!t) -> !t
    stg.yield %c : !t
  }
  stg.output
}
// CHECK: step = "(0@0+2 ~0@1+2)*2 0@4 ~1@0 1@1 2@0 2@1"
sched.tasks @model of "" layers {} {
  step = "(0@0+1)*5 (1@0+1)*2 (2@0+1)*2"
}

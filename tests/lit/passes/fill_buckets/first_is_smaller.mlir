// The first bucket is full with one reduction, the others with three; what is left is issued when the gradients end.
// RUN: stagec-opt %s -p fill-buckets | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%g : !stg.stack<"6" x !t>) {
  %s = stg.repeat "6" slice(%t = %g : !stg.stack<"6" x !t>) -> (!stg.stack<"6" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" bucket 48 first 10 in step.0 {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  sched.compute "optimizer_step" (%s) flops "B" reads "B" writes "B" on "compute" in step.1 {phase = "optim"} : (!stg.stack<"6" x !t>) -> ()
  stg.output
}
// CHECK: step = "0@0 0@1 ~0@2 ~0@3 0@4 ~0@5 1"
sched.tasks @model of "" layers {} {
  step = "(0@0+1)*6 1"
}

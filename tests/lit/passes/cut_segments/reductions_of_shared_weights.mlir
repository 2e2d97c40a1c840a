// What reads a sum over stages waits for the last backward pass of all of them: it is no task of its stage, as the others are.
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <pp = 2, dp = 2>
stg.program "M" (%x : !t) {
  %g, %h = stg.accumulate over "mb" -> (!t, !t) {
    %a = sched.compute "weight" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    %b = sched.compute "table" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    stg.yield %a, %b : !t, !t
  }
  // CHECK: sched.collective "all_reduce"{{.*}} in reduce.
  %r = sched.collective "all_reduce" (%g) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" {phase = "grad_reduce", of_stage} : (!t) -> !t
  // CHECK: sched.collective "all_reduce"{{.*}} in step.
  %s = sched.collective "all_reduce" (%h) over [pp] in "bf16" bytes "2*B" to "2*B" on "comm.pp" {tied = "table", phase = "grad_reduce"} : (!t) -> !t
  // CHECK: sched.collective "all_reduce"{{.*}} in step.
  %u = sched.collective "all_reduce" (%s) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" {phase = "grad_reduce", of_stage} : (!t) -> !t
  // CHECK: sched.compute "update"{{.*}} in step.
  %o = sched.compute "update" (%r, %u) flops "B" reads "B" writes "B" on "compute" {phase = "optim"} : (!t, !t) -> !t
  stg.output
}

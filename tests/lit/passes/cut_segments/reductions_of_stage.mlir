// A reduction that the schedule of a pipeline places is a task of its own.
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %g = stg.accumulate over "mb" -> (!t) {
    %a = sched.compute "weight" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    stg.yield %a : !t
  }
  // CHECK: sched.collective "all_reduce"{{.*}} in reduce.1
  %r = sched.collective "all_reduce" (%g) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" {phase = "grad_reduce", of_stage} : (!t) -> !t
  // CHECK: sched.compute "update"{{.*}} in step.2
  %u = sched.compute "update" (%r) flops "B" reads "B" writes "B" on "compute" {phase = "optim"} : (!t) -> !t
  stg.output
}

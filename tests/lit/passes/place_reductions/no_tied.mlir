// The reduction of a weight that several stages share stays: its ranks come to it when all transfers are done.
// RUN: stagec-opt %s -p place-reductions | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <pp = 2>
stg.program "M" (%x : !t) {
  %g = stg.accumulate over "mb" -> (!t) {
    %b = sched.compute "layer" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    stg.yield %b : !t
  }
  %r = sched.collective "all_reduce" (%g) over [pp] in "bf16" bytes "2*B" to "2*B" on "comm.pp" in step.1 {phase = "grad_reduce", tied = "embed"} : (!t) -> !t
  stg.output
}
// CHECK: step = "1"
sched.tasks @model of "" layers {} {
  B = "0",
  step = "1"
}

// Where rows communicate too, a reduction waits for the row before it, and so does what follows: all ranks issue both in one order.
// RUN: stagec-opt %s -p chain-streams | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2, tp = 2>
stg.program "M" (%x : !t) {
  %g = stg.accumulate over "mb" -> (!t) {
    %a = sched.collective "all_reduce" (%x) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in B.0 {phase = "bwd"} : (!t) -> !t
    %b = sched.compute "layer" (%a) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    %c = sched.compute "next" (%b) flops "B" reads "B" writes "B" on "compute" in B.1 {phase = "bwd"} : (!t) -> !t
    stg.yield %b : !t
  }
  %r = sched.collective "all_reduce" (%g) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" in step.2 {phase = "grad_reduce"} : (!t) -> !t
  stg.output
}
sched.tasks @model of "" layers {} {
  B = "0 1",
  step = "2>B.0"
}
// CHECK:      sched.program @all runs [0 @model] order "B:0.0 step:0" waits {
// CHECK-NEXT:   0 = "-1 0",
// CHECK-NEXT:   1 = "0"
// CHECK-NEXT: } "0 1"
sched.program @all runs [0 @model] order "B:0.0 step:0"
sched.ranks "all" at {} run @all

// Collectives of one stream follow one another as it is.
// RUN: stagec-opt %s -p order-communication | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <tp = 2>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %a = sched.compute "layer" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    %b = sched.collective "all_reduce" (%a) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.0 : (!t) -> !t
    %c = sched.collective "all_reduce" (%x) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.1 : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0 1"
}
// CHECK:      sched.program @all runs [0 @model] order "F:0.0"
// CHECK-NEXT: sched.ranks
sched.program @all runs [0 @model] order "F:0.0"
sched.ranks "all" at {} run @all

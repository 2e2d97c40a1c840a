// Exchanges that may not overlap computation leave tasks one after the other.
// RUN: stagec-opt %s -p interleave-tasks | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <ep = 2>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %a = sched.compute "attention" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    %d = sched.collective "all_to_all" (%a) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in F.0 : (!t) -> !t
    %f = sched.compute "experts" (%d) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> !t
    %g = sched.compute "experts_grad" (%f) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t) -> !t
    %h = sched.collective "all_to_all" (%g) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in B.2 {phase = "bwd"} : (!t) -> !t
    %i = sched.compute "attention_grad" (%h) flops "B" reads "B" writes "B" on "compute" in B.3 {phase = "bwd"} : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0 1",
  B = "2 3"
}
// CHECK:      sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1"
// CHECK-NEXT: sched.ranks
sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1"
sched.ranks "all" at {} run @all

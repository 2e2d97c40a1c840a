// A task that waits for nothing is spread over the rounds of one that waits: a layer without experts beside one with experts.
// RUN: stagec-opt %s -p interleave-tasks | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <ep = 2>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %a = sched.compute "attention" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    %d = sched.collective "all_to_all" (%a) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in F.0 {gives_way} : (!t) -> !t
    %f = sched.compute "experts" (%d) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t) -> !t
    %g = sched.compute "second_grad" (%f) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t) -> !t
    %h = sched.compute "first_grad" (%g) flops "B" reads "B" writes "B" on "compute" in B.3 {phase = "bwd"} : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0 1",
  B = "2 3"
}
// CHECK: sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1" rounds {
// CHECK-NEXT: 0 = "0 0",
// CHECK-NEXT: 1 = "1 3",
// CHECK-NEXT: 2 = "0 2"
// CHECK-NEXT: } "0 1 2 0"
sched.program @all runs [0 @model] order "F:0.0 F:0.1 &B:0.0 B:0.1"
sched.ranks "all" at {} run @all

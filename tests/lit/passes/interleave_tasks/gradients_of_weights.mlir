// Of a backward pass in halves, the gradients of weights are made in the round in which what they read is made.
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
    %g = sched.compute "experts_grad" (%f) flops "B" reads "B" writes "B" on "compute" in I.2 {phase = "bwd"} : (!t) -> !t
    %h = sched.collective "all_to_all" (%g) over [ep] in "bf16" bytes "B" to "B" on "comm.ep" in I.2 {gives_way, phase = "bwd"} : (!t) -> !t
    %i = sched.compute "attention_grad" (%h) flops "B" reads "B" writes "B" on "compute" in I.3 {phase = "bwd"} : (!t) -> !t
    %j = sched.compute "weights_grad" (%g) flops "B" reads "B" writes "B" on "compute" in W.4 {phase = "wgrad"} : (!t) -> !t
    %k = sched.compute "weights_grad" (%i) flops "B" reads "B" writes "B" on "compute" in W.5 {phase = "wgrad"} : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0 1",
  I = "2 3",
  W = "4 5"
}
// CHECK:      sched.program @all runs [0 @model] order "F:0.0 F:0.1 &I:0.0 &W:0.0 I:0.1 W:0.1" rounds {
// CHECK-NEXT:   0 = "0 0",
// CHECK-NEXT:   1 = "1 3",
// CHECK-NEXT:   2 = "0 2"
// CHECK-NEXT: } "0 1 2 2 0 0"
sched.program @all runs [0 @model] order "F:0.0 F:0.1 &I:0.0 &W:0.0 I:0.1 W:0.1"
sched.ranks "all" at {} run @all

// Without backward passes two microbatches go forward side by side: the first begins.
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
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0 1"
}
// CHECK: sched.program @all runs [0 @model] order "F:0.0 &F:0.1" rounds {
// CHECK-NEXT: 0 = "0 2",
// CHECK-NEXT: 1 = "1 3"
sched.program @all runs [0 @model] order "F:0.0 &F:0.1"
sched.ranks "all" at {} run @all

// A value that is read is freed by somebody: a plan of memory that leaves it out would count too little.
// RUN: not stagec %s --memory 2>&1 | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "1"
dist.mesh <dp = 1>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK:      error[E0709]: `sched.compute`: somebody reads what it makes, and nobody frees it
    // CHECK-NEXT:  --> {{.*}}:13:
    %a = sched.compute "a" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries], frees 0> : (!t) -> !t
    %b = sched.compute "b" (%a) flops "B" reads "B" writes "B" on "compute" in F.0 memory <[temporaries]> : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.stored of "" {}
sched.tasks @model of "" layers {} {
  F = "0"
}
sched.program @all runs [0 @model] order "F:0.0"
sched.ranks "all" at {} run @all

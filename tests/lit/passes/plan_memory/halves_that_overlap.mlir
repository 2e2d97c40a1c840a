// Where both halves of a backward pass overlap with a forward pass, their rows are issued in turns: either half may be the last reader.
// RUN: stagec-opt %s -p plan-memory | filecheck %s
!t = !stg.tensor<[B, D], bf16>
stg.dim "B" = "8"
stg.dim "D" = "8"
stg.dim "mb" = "2"
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: "gelu"{{.*}} in F.0
    %h = sched.compute "gelu" (%x) flops "B" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    // CHECK: "split"{{.*}} in I.1 memory <[temporaries], frees 0>
    %g = sched.compute "split" (%h) flops "B" reads "B" writes "B" on "compute" in I.1 : (!t) -> !t
    // CHECK: "input"{{.*}} in I.2 memory <[temporaries], frees 0>
    %i = sched.compute "input" (%g) flops "B" reads "B" writes "B" on "compute" in I.2 : (!t) -> !t
    // CHECK: "weight"{{.*}} in W.3 memory <[temporaries], frees 0>
    %w = sched.compute "weight" (%g) flops "B" reads "B" writes "B" on "compute" in W.3 : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "0",
  I = "1 2",
  W = "3"
}
sched.program @all runs [0 @model] order "F:0.0 F:0.1 &I:0.0 &W:0.0 I:0.1 W:0.1"
sched.ranks "all" at {} run @all

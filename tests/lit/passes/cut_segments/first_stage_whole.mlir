// With `first_whole` the first stage has its whole backward pass where its weight gradients are due; others have halves.
// RUN: stagec-opt %s -p 'cut-segments{first_whole=true}' | filecheck %s
!t = !stg.tensor<[B], bf16>
dist.mesh <pp = 2>
stg.dim "mb" = "4"
sched.schedule "zb_h1" ranks "pp" virtual 1 microbatches "mb"
dist.stages ["one" 1, "other" 1] over "pp"
stg.program "M" (%x : !t) attributes {kind = "one"} {
  stg.accumulate over "mb" {
    // CHECK: sched.compute "input"{{.*}} in W.0
    %a = sched.compute "input" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
    // CHECK: sched.compute "weight"{{.*}} in W.0
    %b = sched.compute "weight" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    stg.yield
  }
  stg.output
}
stg.program "M" (%x : !t) attributes {kind = "other"} {
  stg.accumulate over "mb" {
    // CHECK: sched.compute "input"{{.*}} in I.0
    %a = sched.compute "input" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
    // CHECK: sched.compute "weight"{{.*}} in W.1
    %b = sched.compute "weight" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    stg.yield
  }
  stg.output
}

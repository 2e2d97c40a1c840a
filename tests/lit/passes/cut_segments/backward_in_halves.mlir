// A zero-bubble schedule has gradients of weights (W) apart from those of inputs (I).
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
dist.mesh <pp = 2>
stg.dim "mb" = "4"
sched.schedule "zb_h1" ranks "pp" virtual 1 microbatches "mb"
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: sched.compute "input"{{.*}} in I.0
    %a = sched.compute "input" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
    // CHECK: sched.compute "weight"{{.*}} in W.1
    %b = sched.compute "weight" (%x) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
    // CHECK: sched.compute "next"{{.*}} in I.0
    %c = sched.compute "next" (%a) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
    stg.yield
  }
  stg.output
}

// What stands before, in and behind a repeat are segments of their own.
// RUN: stagec-opt %s -p cut-segments | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    // CHECK: sched.compute "embed"{{.*}} in F.0
    %a = sched.compute "embed" (%x) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
    %z = stg.repeat "4" carry(%h = %a : !t) -> (!t) {
      // CHECK: sched.compute "layer"{{.*}} in F.1
      %b = sched.compute "layer" (%h) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
      // CHECK: sched.compute "gradient"{{.*}} in B.3
      %c = sched.compute "gradient" (%h) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
      stg.yield %b : !t
    }
    // CHECK: sched.compute "head"{{.*}} in F.2
    %d = sched.compute "head" (%z) flops "B" reads "B" writes "B" on "compute" : (!t) -> !t
    stg.yield
  }
  // CHECK: sched.compute "step"{{.*}} in step.4
  sched.compute "step" () flops "B" reads "B" writes "B" on "compute" {phase = "optim"} : () -> ()
  stg.output
}

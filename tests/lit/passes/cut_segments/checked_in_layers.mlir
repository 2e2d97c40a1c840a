// Where hosts wait for gradients before they reduce them, what completes a gradient ends a segment in layers too.
// RUN: stagec-opt %s -p cut-segments --split-input-file | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %gs = stg.accumulate over "mb" -> (!stg.stack<"4" x !t>) {
    %z, %w = stg.repeat "4" carry(%h = %x : !t) -> (!t, !stg.stack<"4" x !t>) {
      // CHECK: sched.compute "weight"{{.*}} in B.0
      %b = sched.compute "weight" (%h) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
      // CHECK: sched.compute "input"{{.*}} in B.1
      %c = sched.compute "input" (%h) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
      stg.yield %c, %b : !t, !t
    }
    stg.yield %w : !stg.stack<"4" x !t>
  }
  %s = stg.repeat "4" slice(%t = %gs : !stg.stack<"4" x !t>) -> (!stg.stack<"4" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" {phase = "grad_reduce", checked} : (!t) -> !t
    stg.yield %r : !t
  }
  stg.output
}

// -----

!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %gs = stg.accumulate over "mb" -> (!stg.stack<"4" x !t>) {
    %z, %w = stg.repeat "4" carry(%h = %x : !t) -> (!t, !stg.stack<"4" x !t>) {
      // CHECK: sched.compute "weight"{{.*}} in B.0
      %b = sched.compute "weight" (%h) flops "B" reads "B" writes "B" on "compute" {phase = "wgrad"} : (!t) -> !t
      // CHECK: sched.compute "input"{{.*}} in B.0
      %c = sched.compute "input" (%h) flops "B" reads "B" writes "B" on "compute" {phase = "bwd"} : (!t) -> !t
      stg.yield %c, %b : !t, !t
    }
    stg.yield %w : !stg.stack<"4" x !t>
  }
  %s = stg.repeat "4" slice(%t = %gs : !stg.stack<"4" x !t>) -> (!stg.stack<"4" x !t>) {
    %r = sched.collective "all_reduce" (%t) over [dp] in "bf16" bytes "2*B" to "2*B" on "comm.dp" {phase = "grad_reduce"} : (!t) -> !t
    stg.yield %r : !t
  }
  stg.output
}

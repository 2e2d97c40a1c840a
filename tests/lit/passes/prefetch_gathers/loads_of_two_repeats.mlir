// Loads are counted in layers from one repeat to the next, so that the load of a layer is before its gather, which is one unit ahead.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"2" x !s>
  %us = stg.weight "u" : !stg.stack<"1" x !s>
  stg.accumulate over "mb" {
    %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    %z = stg.repeat "2" carry(%h = %y : !t) slice(%w = %ws : !stg.stack<"2" x !s>) -> (!t) {
      %l = sched.host_copy "load" (%w) bytes "B" on "host.load" in B.1 {phase = "bwd", prefetch = 2 : i64} : (!s) -> !s
      %v = sched.collective "all_gather" (%l) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.2 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.3 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    %q = stg.repeat "1" carry(%h = %z : !t) slice(%w = %us : !stg.stack<"1" x !s>) -> (!t) {
      %l = sched.host_copy "load" (%w) bytes "B" on "host.load" in B.4 {phase = "bwd", prefetch = 2 : i64} : (!s) -> !s
      %v = sched.collective "all_gather" (%l) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.5 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %b = sched.compute "first" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.6 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: B = "1@0 2@0 1@1 0 4@0 2@1 3@0 5@0 3@1 6@0"
sched.tasks @model of "" layers {} {
  B = "0 (1@0+1 2@0+1 3@0+1)*2 (4@0+1 5@0+1 6@0+1)*1"
}

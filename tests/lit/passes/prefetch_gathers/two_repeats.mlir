// The first layer of a repeat is gathered one unit ahead: while the last of the repeat before it is computed, whatever stands between them.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"2" x !s>
  %us = stg.weight "u" : !stg.stack<"3" x !s>
  stg.accumulate over "mb" {
    %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    %z = stg.repeat "2" carry(%h = %y : !t) slice(%w = %ws : !stg.stack<"2" x !s>) -> (!t) {
      %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.1 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %b = sched.compute "decoder" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    %n = sched.compute "norm" (%z) flops "B" reads "B" writes "B" on "compute" in B.3 {phase = "bwd"} : (!t) -> !t
    %q = stg.repeat "3" carry(%h = %n : !t) slice(%w = %us : !stg.stack<"3" x !s>) -> (!t) {
      %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.4 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %b = sched.compute "encoder" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.5 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: B = "1@0 0 1@1 2@0 4@0 2@1 3 (4@1+1 5@0+1)*2 5@2"
sched.tasks @model of "" layers {} {
  B = "0 (1@0+1 2@0+1)*2 3 (4@0+1 5@0+1)*3"
}

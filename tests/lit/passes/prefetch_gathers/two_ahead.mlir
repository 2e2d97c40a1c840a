// Two units ahead: the first layers' gathers come before the run that precedes the layers.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  stg.accumulate over "mb" {
    %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    %z = stg.repeat "4" carry(%h = %y : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
      %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.1 {phase = "bwd", prefetch = 2 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: B = "1@0 1@1 0 (1@2+1 2@0+1)*2 2@2 2@3"
sched.tasks @model of "" layers {} {
  B = "0 (1@0+1 2@0+1)*4"
}

// Loads from the host are counted in layers, gathers in units: the gather stays one unit ahead behind a load two ahead.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  stg.accumulate over "mb" {
    %y = sched.compute "loss" (%x) flops "B" reads "B" writes "B" on "compute" in B.0 {phase = "bwd"} : (!t) -> !t
    %z = stg.repeat "4" carry(%h = %y : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
      %l = sched.host_copy "load" (%w) bytes "B" on "host.load" in B.1 {phase = "bwd", prefetch = 2 : i64} : (!s) -> !s
      %v = sched.collective "all_gather" (%l) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.2 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in B.3 {phase = "bwd"} : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: B = "1@0 2@0 1@1 0 (1@2+1 2@1+1 3@0+1)*2 2@3 3@2 3@3"
sched.tasks @model of "" layers {} {
  B = "0 (1@0+1 2@0+1 3@0+1)*4"
}

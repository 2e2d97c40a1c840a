// What a checkpoint makes again needs units before their own backward passes begin.
// Segments 0, 3 and 1 gather units whose backward passes begin in this order, at segments 4, 5 and 6: the second is gathered as that of the first begins, and
// the first of the next layer as that of the last does. The last is needed before the second begins, and gathered there.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s

!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "2"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %us = stg.weight "u" : !stg.stack<"3" x !s>
  %vs = stg.weight "v" : !stg.stack<"3" x !s>
  %ws = stg.weight "w" : !stg.stack<"3" x !s>
  stg.accumulate over "mb" {
    %z = stg.repeat "3" carry(%h = %x : !t) slice(%u = %us : !stg.stack<"3" x !s>, %v = %vs : !stg.stack<"3" x !s>, %w = %ws : !stg.stack<"3" x !s>) -> (!t) {
      %gu = sched.collective "all_gather" (%u) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.0 {phase = "bwd", prefetch = 1 : i64} : (!s) -> !t
      %gv = sched.collective "all_gather" (%v) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.1 {phase = "recompute", prefetch = 1 : i64, hook = 1 : i64} : (!s) -> !t
      %a = sched.compute "again" (%h, %gv) flops "B" reads "B" writes "B" on "compute" in B.2 {phase = "recompute"} : (!t, !t) -> !t
      %gw = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in B.3 {phase = "bwd", prefetch = 1 : i64, hook = 0 : i64} : (!s) -> !t
      %b = sched.compute "again" (%a, %gw) flops "B" reads "B" writes "B" on "compute" in B.4 {phase = "recompute"} : (!t, !t) -> !t
      %c = sched.compute "first" (%b, %gu) flops "B" reads "B" writes "B" on "compute" in B.4 {phase = "bwd"} : (!t, !t) -> !t
      %d = sched.compute "second" (%c, %gw) flops "B" reads "B" writes "B" on "compute" in B.5 {phase = "bwd", begins_unit = 0 : i64} : (!t, !t) -> !t
      %e = sched.compute "third" (%d, %gv) flops "B" reads "B" writes "B" on "compute" in B.6 {phase = "bwd", begins_unit = 1 : i64} : (!t, !t) -> !t
      stg.yield %e : !t
    }
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  // CHECK: B = "0@0 (3@0+1 1@0+1 2@0+1 4@0+1 5@0+1 0@1+1 6@0+1)*2 3@2 1@2 2@2 4@2 5@2 6@2"
  B = "(0@0+1 1@0+1 2@0+1 3@0+1 4@0+1 5@0+1 6@0+1)*3"
}

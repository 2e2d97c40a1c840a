// Gathers of the step are issued in the first forward pass: behind what the stage receives, or where their unit begins.
// RUN: stagec-opt %s -p place-reductions | filecheck %s
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2, pp = 2>
stg.program "M" (%x : !t) {
  %r = stg.weight "r" : !s
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  %root = sched.collective "all_gather" (%r) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in pre.0 {issued = "with_pass", lag = 1 : i64} : (!s) -> !t
  %whole = stg.repeat "4" slice(%w = %ws : !stg.stack<"4" x !s>) -> (!stg.stack<"4" x !t>) {
    %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in pre.1 {issued = "with_unit", lag = 1 : i64} : (!s) -> !t
    stg.yield %v : !t
  }
  stg.accumulate over "mb" {
    %h = sched.stage_recv "forward" 0 on "recv" in RECV_F.2 : !t
    %y = stg.repeat "4" carry(%i = %h : !t) slice(%v = %whole : !stg.stack<"4" x !t>) -> (!t) {
      %b = sched.compute "layer" (%i, %v) flops "B" reads "B" writes "B" on "compute" in F.3 : (!t, !t) -> !t
      stg.yield %b : !t
    }
    %z = sched.compute "head" (%y, %root) flops "B" reads "B" writes "B" on "compute" in F.4 : (!t, !t) -> !t
    stg.yield
  }
  stg.output
}
// CHECK: pre = "0>RECV_F.0 1@0>RECV_F.0 (1@1+1>F.0+1)*3"
sched.tasks @model of "" layers {} {
  pre = "0 (1@0+1)*4",
  RECV_F = "2",
  F = "(3@0+1)*4 4"
}

// A gather that is issued no unit ahead begins where it stands, also where its shard is loaded from the host before.
// RUN: stagec-opt %s -p chain-streams | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  stg.accumulate over "mb" {
    %z = stg.repeat "4" carry(%h = %x : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
      %l = sched.host_copy "load" (%w) bytes "B" on "host.load" in F.0 : (!s) -> !s
      %v = sched.collective "all_gather" (%l) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in F.1 {lag = 0 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in F.2 : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "(0@0+1 1@0+1 2@0+1)*4"
}
// CHECK:      sched.program @all runs [0 @model] order "F:0.0" waits {
// CHECK-NEXT:   0 = "(0 0 -1)*4"
// CHECK-NEXT: } "0"
sched.program @all runs [0 @model] order "F:0.0"
sched.ranks "all" at {} run @all

// A gather that may begin early is taken right after the last thing that it waits for, before what the host issues earlier.
// RUN: stagec-opt %s -p chain-streams,order-communication | filecheck %s
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
dist.mesh <dp = 2, tp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  stg.accumulate over "mb" {
    %z = stg.repeat "4" carry(%h = %x : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
      %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in F.0 {lag = 1 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
      %c = sched.collective "all_reduce" (%b) over [tp] in "bf16" bytes "B" to "B" on "comm.tp" in F.1 : (!t) -> !t
      stg.yield %c : !t
    }
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  F = "(0@0+1 1@0+1)*4"
}
// CHECK:      } "0" ahead {
// CHECK-NEXT:   0 = "0 0 2 (0 3)*2 0"
// CHECK-NEXT: } "0"
sched.program @all runs [0 @model] order "F:0.0"
sched.ranks "all" at {} run @all

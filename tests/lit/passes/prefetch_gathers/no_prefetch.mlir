// A gather that says nothing stays where it is.
// RUN: stagec-opt %s -p prefetch-gathers | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %ws = stg.weight "w" : !stg.stack<"4" x !s>
  stg.accumulate over "mb" {
    %z = stg.repeat "4" carry(%h = %x : !t) slice(%w = %ws : !stg.stack<"4" x !s>) -> (!t) {
      %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in F.0 {lag = 1 : i64} : (!s) -> !t
      %b = sched.compute "layer" (%h, %v) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
      stg.yield %b : !t
    }
    stg.yield
  }
  stg.output
}
// CHECK: F = "(0@0+1 1@0+1)*4"
sched.tasks @model of "" layers {} {
  F = "(0@0+1 1@0+1)*4"
}

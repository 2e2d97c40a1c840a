// Of what is gathered not for each pass, it has to be said where a pass finds it.
// RUN: not stagec-opt %s -p chain-streams 2>&1 | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
stg.dim "B" = "8"
dist.mesh <dp = 2>
stg.program "M" (%x : !t) {
  %w = stg.weight "w" : !s
  stg.accumulate over "mb" {
    %v = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in GATHER_F.0 {lag = 1 : i64, unit = 0 : i64} : (!s) -> !t
    %y = sched.compute "layer" (%x, %v) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  GATHER_F = "0",
  F = "1"
}
// CHECK: error[E0709]: `sched.program`: `gathered` does not say where `F:0.0` finds parameters that it reads
sched.program @all runs [0 @model] order "F:0.0 GATHER_F:0.1 F:0.1" gathered "0@F:0.1<GATHER_F.1"
sched.ranks "all" at {} run @all

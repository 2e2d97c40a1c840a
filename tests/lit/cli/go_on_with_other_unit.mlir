// Gathers of one unit gather the same weights.
// RUN: not stagec %s -o %t.d 2>&1 | filecheck %s
!t = !stg.tensor<[B], bf16>
!s = !dist.shard<!stg.tensor<[B], bf16> over [dp]>
stg.dim "B" = "8"
stg.dim "mb" = "1"
dist.mesh <dp = 2>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" (%x : !t) {
  %w = stg.weight "w" : !s
  %v = stg.weight "v" : !s
  stg.accumulate over "mb" {
    %a = sched.collective "all_gather" (%w) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in GATHER_F.0 {unit = 0 : i64} : (!s) -> !t
    %y = sched.compute "layer" (%x, %a) flops "B" reads "B" writes "B" on "compute" in F.1 : (!t, !t) -> !t
    // CHECK: error[E0709]: `sched.collective`: it gathers other weights than the gather of unit 0 before it
    %b = sched.collective "all_gather" (%v) over [dp] in "bf16" bytes "B" to "2*B" on "comm.dp" in GATHER_B.2 {unit = 0 : i64} : (!s) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @model of "" layers {} {
  GATHER_F = "0",
  F = "1",
  GATHER_B = "2"
}
sched.program @all runs [0 @model] order "GATHER_F:0.0 F:0.0"
sched.ranks "all" at {} run @all

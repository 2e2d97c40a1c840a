// Tasks in which a rank's place counts are of the ranks that run them.
// RUN: not stagec %s -o %t.d 2>&1 | filecheck %s
!t = !stg.tensor<[B], bf16>
stg.dim "B" = "8"
stg.dim "mb" = "1"
dist.mesh <cp = 2>
dist.plan "p" batch "B" {} at {}
dist.passes []
stg.program "M" (%x : !t) {
  stg.accumulate over "mb" {
    %y = sched.compute "layer" (%x) flops "B*cp.index" reads "B" writes "B" on "compute" in F.0 : (!t) -> !t
    stg.yield
  }
  stg.output
}
sched.tasks @first of "" layers {cp.index = 0 : i64} {
  F = "0"
}
// CHECK: error[E0709]: `sched.tasks`: ranks `cp1` are at 1 of `cp`, and `@second` says otherwise
sched.tasks @second of "" layers {cp.index = 0 : i64} {
  F = "0"
}
sched.program @all runs [0 @first] order "F:0.0"
sched.program @others runs [0 @second] order "F:0.0"
sched.ranks "cp0" at {cp = [0]} run @all
sched.ranks "cp1" at {cp = [1]} run @others

// Ranks that have the same each send a share of it: here to one rank that has twice as many rows.
// RUN: stagec-opt %s -p hand-over-activations | filecheck %s

!x = !stg.tensor<[B/(mb*dp), D], bf16>
stg.dim "mb" = "2"
dist.mesh <dp = 4, tp = 2>
dist.pool "vision" ranks 0 to 8 of 10
dist.gives "forward 0" to "text" from 8 mesh <dp = 2> as <[B/(mb*dp), D], bf16> moving "B*D/mb" channel 0 microbatches 1
stg.program "M" () {
  stg.accumulate over "mb" {
    %v = "test.op"() : () -> !x
    // CHECK: dist.pool_send(%v) to "text" going "forward" rank "floordiv(dp.index, 2) + 8" channel 0 in "bf16" bytes "B*D/(4*mb)"
    // CHECK-NOT: dist.pool_send(
    dist.tower_send "forward" 0 to "text" %v : !x
    stg.yield
  }
  stg.output
}

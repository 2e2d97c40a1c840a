// Tokens go to experts and come back as messages that no pipeline's schedule places; what reads the last part of them waits, and lets others go first.
// RUN: stagec-opt %s -p hand-over-activations | filecheck %s

!r = !stg.tensor<[X, T/dp, D], bf16>
dist.mesh <dp = 2>
dist.experts on "experts" others on "attention"
dist.pool "attention" ranks 0 to 2 of 4
dist.gives "forward 0" to "experts" from 2 mesh <ep = 2> as <[X/ep, T, D], bf16> moving "X*T*D" channel 0 microbatches 1
dist.takes "backward 1" of "experts" from 2 mesh <ep = 2> as <[X/ep, T, D], bf16> moving "X*T*D" channel 1 microbatches 1
stg.program "M" () {
  stg.repeat "L" {
    %r = "test.op"() : () -> !r
    // CHECK: dist.pool_send(%r) to "experts" rank "2" channel 0 in "bf16" bytes "D*T*X/2" {purpose = "ep", made_by
    // CHECK-NEXT: dist.pool_send(%r) to "experts" rank "3" channel 0 in "bf16" bytes "D*T*X/2" {purpose = "ep", made_by
    dist.tower_send "forward" 0 to "experts" %r : !r
    // CHECK-NEXT: %[[PART:.*]] = dist.pool_recv from "experts" rank "2" channel 1 in "bf16" bytes "D*T*X/2" {purpose = "ep", made_by
    // CHECK-NEXT: dist.pool_recv(%[[PART]]) from "experts" rank "3" channel 1 in "bf16" bytes "D*T*X/2" {purpose = "ep", gives_way, made_by
    %y = dist.tower_recv "backward" 1 of "experts" : !r
    "test.op"(%y) : (!r) -> ()
    stg.yield
  }
  stg.output
}

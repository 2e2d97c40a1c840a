// A device of two sends each half of what it has to one of four.
// RUN: stagec-opt %s -p hand-over-caches | filecheck %s

!c = !stg.tensor<[B, T.stored, K/tp, E], bf16>
!n = !stg.tensor<[B, S, K/tp, E], bf16>
!k = !stg.tensor<[B, T, K/tp, E], bf16>
dist.mesh <tp = 2>
dist.pool "prefill" ranks 0 to 2 of 6
dist.gives "k" to "decode" from 2 mesh <tp = 4> as <[B, T.stored, K/tp, E], bf16> moving "64*E*K" channel 0 microbatches 1
stg.program "M" (%x : !n) {
  %cache = stg.cache "k" : !c
  // CHECK:      %[[ALL:.*]] = stg.append
  // CHECK-NEXT: dist.pool_send(%[[ALL]]) to "decode" rank "2*tp.index + 2" channel 0 in "bf16" bytes "32*E*K"
  // CHECK-NEXT: dist.pool_send(%[[ALL]]) to "decode" rank "2*tp.index + 3" channel 0 in "bf16" bytes "32*E*K"
  %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
  stg.output
}

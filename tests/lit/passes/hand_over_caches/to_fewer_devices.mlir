// A device of two takes what two of four have, before it appends.
// RUN: stagec-opt %s -p hand-over-caches | filecheck %s

!c = !stg.tensor<[B, T.stored, K/tp, E], bf16>
!n = !stg.tensor<[B, S, K/tp, E], bf16>
!k = !stg.tensor<[B, T, K/tp, E], bf16>
dist.mesh <tp = 2>
dist.pool "decode" ranks 4 to 6 of 6
dist.takes "k" of "prefill" from 0 mesh <tp = 4> as <[B, T.stored, K/tp, E], bf16> moving "64*E*K" channel 0 microbatches 1
stg.program "M" (%x : !n) {
  %cache = stg.cache "k" : !c
  // CHECK:      %[[ONE:.*]] = dist.pool_recv(%cache) from "prefill" rank "2*tp.index" channel 0 in "bf16" bytes "32*E*K"
  // CHECK-NEXT: %[[TWO:.*]] = dist.pool_recv(%[[ONE]]) from "prefill" rank "2*tp.index + 1" channel 0 in "bf16" bytes "32*E*K"
  // CHECK-NEXT: stg.append %[[TWO]],
  %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
  stg.output
}

// Of four devices that have the same, each sends a quarter of it to a pool of one.
// RUN: stagec-opt %s -p hand-over-caches | filecheck %s

!c = !stg.tensor<[B, T.stored, R], bf16>
!n = !stg.tensor<[B, S, R], bf16>
!k = !stg.tensor<[B, T, R], bf16>
dist.mesh <tp = 4>
dist.pool "prefill" ranks 0 to 4 of 5
dist.gives "k" to "decode" from 4 mesh <dp = 1> as <[B/dp, T.stored, R], bf16> moving "64*R" channel 0 microbatches 1
stg.program "M" (%x : !n) {
  %cache = stg.cache "k" : !c
  // CHECK:     stg.append
  // CHECK-NEXT: dist.pool_send({{.*}}) to "decode" rank "4" channel 0 in "bf16" bytes "32*R"
  // CHECK-NOT: dist.pool_send
  %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
  stg.output
}

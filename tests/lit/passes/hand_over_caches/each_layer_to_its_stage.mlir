// In a repeat the peer is on the stage that has the layer.
// RUN: stagec-opt %s -p hand-over-caches | filecheck %s

!c = !stg.tensor<[B, T.stored, R], bf16>
!n = !stg.tensor<[B, S, R], bf16>
!k = !stg.tensor<[B, T, R], bf16>
stg.dim "L" = "4"
dist.mesh <dp = 1>
dist.pool "prefill" ranks 0 to 1 of 3
dist.gives "k" to "decode" from 1 mesh <pp = 2> as <[B, T.stored, R], bf16> moving "64*R" channel 0 microbatches 1 stages "pp" <0 x 2, 1 x 2>
stg.program "M" (%x : !n) {
  %cache = stg.cache "k" : !stg.stack<"L" x !c>
  stg.repeat "L" slice(%one = %cache : !stg.stack<"L" x !c>) {
    // CHECK:      stg.append
    // CHECK-NEXT: dist.pool_send({{.*}}) to "decode" rank "pool.stage + 1" at <0 x 2, 1 x 2> channel 0 in "bf16" bytes "128*R"
    %all = stg.append %one, %x over "S" into "T" : (!c, !n) -> !k
    stg.yield
  }
  stg.output
}

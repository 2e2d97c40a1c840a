// A module that is no pool of several hands nothing over.
// RUN: stagec-opt %s -p hand-over-caches | filecheck %s

!c = !stg.tensor<[B, T.stored, R], bf16>
!n = !stg.tensor<[B, S, R], bf16>
!k = !stg.tensor<[B, T, R], bf16>
stg.program "M" (%x : !n) {
  %cache = stg.cache "k" : !c
  // CHECK-NOT: dist.pool
  %all = stg.append %cache, %x over "S" into "T" : (!c, !n) -> !k
  stg.output
}

// Positions that are dealt out in turns are as many as the module says: what memory is set aside for is as much on each rank.
// RUN: stagec-opt %s -p 'split-unevenly' | filecheck %s

stg.dim "T" = "61"
stg.dim "T.stored" = "dcp*ceildiv(61, dcp)"
stg.dim "T.part" = "dcp*ceildiv(61 - dcp.index, dcp)"
stg.dim "T.part.max" = "dcp*ceildiv(61, dcp)"
dist.mesh <dcp = 4>
dist.rule [T, T.stored] over [dcp] uneven "interleaved"
stg.program "M" (%x : !stg.tensor<[B, S, E], bf16>) {
  // CHECK: %c = stg.cache "c" : !stg.tensor<[B, T.stored/dcp, E], bf16>
  %c = stg.cache "c" : !stg.tensor<[B, T.stored/dcp, E], bf16>
  // CHECK: %k = stg.append %c, %x over "S" into "T.part" own "1" : {{.*}} -> !stg.tensor<[B, T.part/dcp, E], bf16>
  %k = stg.append %c, %x over "S" into "T" own "1" : (!stg.tensor<[B, T.stored/dcp, E], bf16>, !stg.tensor<[B, S, E], bf16>) -> !stg.tensor<[B, T/dcp, E], bf16>
  // CHECK: dist.all_gather %k dim "T" over [dcp] uneven [T] : !stg.tensor<[B, T.part/dcp, E], bf16> -> !stg.tensor<[B, T, E], bf16>
  %all = dist.all_gather %k dim "T" over [dcp] : !stg.tensor<[B, T/dcp, E], bf16> -> !stg.tensor<[B, T, E], bf16>
  stg.output
}

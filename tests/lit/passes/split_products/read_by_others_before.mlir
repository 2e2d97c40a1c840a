// What sums over the gathered dim reads all pieces: they are gathered, past another product, before it.
// RUN: stagec-opt %s -p 'split-products{pieces=4}' | filecheck %s

dist.mesh <tp = 2>
stg.dim "Z" = "64"
stg.program "M" (%dy : !stg.tensor<[B, Z/tp], bf16>, %w : !stg.tensor<[Z, D], bf16>, %x : !stg.tensor<[B, D], bf16>) {
  %all = dist.all_gather %dy dim "Z" over [tp] : !stg.tensor<[B, Z/tp], bf16> -> !stg.tensor<[B, Z], bf16>
  // CHECK:      stg.repeat "tp.piece" slice
  // CHECK-NEXT:   dist.all_gather {{.*}} dim "Z" over [tp]
  // CHECK-NEXT:   stg.contract {{.*}} over [B]
  // CHECK:      %[[ALL:.*]] = stg.join_chunks {{.*}} -> !stg.tensor<[B, Z], bf16>
  // CHECK:      stg.contract %[[ALL]], %w over [Z]
  %dx = stg.contract %all, %w over [Z] : (!stg.tensor<[B, Z], bf16>, !stg.tensor<[Z, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %dw = stg.contract %all, %x over [B] : (!stg.tensor<[B, Z], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[Z, D], bf16>
  "test.op"(%dx, %dw) : (!stg.tensor<[B, D], bf16>, !stg.tensor<[Z, D], bf16>) -> ()
  stg.output
}

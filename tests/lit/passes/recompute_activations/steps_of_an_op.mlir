// The steps of an op that was taken apart are meant by its name, with the collectives between them.
// RUN: stagec-opt %s -p 'recompute-activations{what="softmax" modules="Head"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, V/tp], bf16>) {
  %m = stg.reduce "max" %x over [V] {scope = "Head", part_of = "softmax"}
    : (!stg.tensor<[B, V/tp], bf16>) -> !stg.tensor<[B], bf16>
  %g = dist.all_reduce "max" %m over [tp] {scope = "Head", part_of = "softmax"}
    : !stg.tensor<[B], bf16> -> !stg.tensor<[B], bf16>
  %s = stg.sub %x, %g {scope = "Head", part_of = "softmax"}
    : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B, V/tp], bf16>
  // CHECK:      %[[M:.*]] = stg.reduce "max" %x {{.*}}phase = "recompute"
  // CHECK-NEXT: %[[G:.*]] = dist.all_reduce "max" %[[M]] {{.*}}phase = "recompute"
  // CHECK-NEXT: %[[S:.*]] = stg.sub %x, %[[G]] {{.*}}phase = "recompute"
  // CHECK-NEXT: stg.mul %[[S]], %[[S]] {phase = "bwd"}
  %d = stg.mul %s, %s {phase = "bwd"}
    : (!stg.tensor<[B, V/tp], bf16>, !stg.tensor<[B, V/tp], bf16>) -> !stg.tensor<[B, V/tp], bf16>
  stg.output
}

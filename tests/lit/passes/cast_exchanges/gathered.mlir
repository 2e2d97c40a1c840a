// Tokens are cast before they are gathered, and experts' products read what came so: nothing quantizes it again. Who else reads what was gathered has it cast back.
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="fp8_1x128"}' | filecheck %s
// RUN: not stagec-opt %s -p 'cast-exchanges{dispatch="fp8_1x128" combine="bf16"}' 2>&1 | filecheck %s --check-prefix=SUM

// SUM: error[E0312]: what experts make of gathered tokens is added up by a reduce-scatter, in the dtype of its terms
// SUM: help: leave `combine` out of `precision`, or `exchange = all_gather` out of `collectives`
dist.mesh <ep = 4>
stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %i : !stg.tensor<[B, A], i32>, %w : !stg.tensor<[X/ep, D, F], fp8_128x128>) {
  // CHECK:      %[[Q:[^ ]*]] = stg.cast %x {{.*}} -> !stg.tensor<[B/ep, D], fp8_1x128>
  // CHECK-NEXT: %[[ALL:[^ ]*]] = dist.all_gather %[[Q]] dim "B" over [ep] : {{.*}} -> !stg.tensor<[B, D], fp8_1x128>
  // CHECK-NEXT: %[[BACK:[^ ]*]] = stg.cast %[[ALL]] {{.*}} -> !stg.tensor<[B, D], bf16>
  %y = dist.all_gather %x dim "B" over [ep] : !stg.tensor<[B/ep, D], bf16> -> !stg.tensor<[B, D], bf16>
  // CHECK-NEXT: %[[OWN:[^ ]*]], %{{[^ ]*}} = stg.dispatch %[[ALL]] by %i {{.*}} -> (!stg.tensor<[X/ep, T, D], fp8_1x128>
  %e, %n = stg.dispatch %y by %i to "X" "T" dropless
    : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X], i64>)
  // CHECK-NEXT: stg.contract %[[OWN]], %w
  %q = stg.quantize %e : (!stg.tensor<[X/ep, T, D], bf16>) -> !stg.tensor<[X/ep, T, D], fp8_1x128>
  %u = stg.contract %q, %w over [D]
    : (!stg.tensor<[X/ep, T, D], fp8_1x128>, !stg.tensor<[X/ep, D, F], fp8_128x128>) -> !stg.tensor<[X/ep, T, F], bf16>
  // CHECK-NEXT: stg.unary "silu" %[[BACK]]
  %z = stg.unary "silu" %y : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  stg.output
}

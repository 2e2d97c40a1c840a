// Where weights are quantized and no op quantizes what they multiply, as in an engine, products read what arrived in their dtype; who else reads it has it cast back.
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="fp8_1x128" inputs="fp8_1x128"}' | filecheck %s
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="fp8_1x128" inputs="mxfp8"}' | filecheck %s --check-prefix=OTHER

dist.mesh <ep = 4>
stg.program "M" (%x : !stg.tensor<[B/ep, D], bf16>, %i : !stg.tensor<[B/ep, A], i32>, %w : !stg.tensor<[X/ep, D, F], fp8_128x128>, %v : !stg.tensor<[X/ep, D, F], bf16>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
  // CHECK: %[[CAME:[^ ]*]] = dist.all_to_all {{.*}} -> !stg.tensor<[X/ep, T, D], fp8_1x128>
  // CHECK: %[[BACK:[^ ]*]] = stg.cast %[[CAME]] {{.*}} -> !stg.tensor<[X/ep, T, D], bf16>
  // OTHER: %[[BACK:[^ ]*]] = stg.cast {{.*}} -> !stg.tensor<[X/ep, T, D], bf16>
  %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
  // CHECK-NEXT: stg.contract %[[CAME]], %w
  // OTHER-NEXT: stg.contract %[[BACK]], %w
  %u = stg.contract %e, %w over [D]
    : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X/ep, D, F], fp8_128x128>) -> !stg.tensor<[X/ep, T, F], bf16>
  // CHECK-NEXT: stg.contract %[[BACK]], %v
  // OTHER-NEXT: stg.contract %[[BACK]], %v
  %g = stg.contract %e, %v over [D]
    : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T, F], bf16>
  stg.output
}

// Where all devices serve the same, experts have what they have.
// RUN: stagec-opt %s -p 'spread-load{sent=true}' | filecheck %s

stg.dim "B" = "4"
stg.dim "S" = "3"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "A*B*S/X" average
dist.mesh <ep = 2>
// CHECK-NOT: dist.sent_load
stg.program "M" (%x : !stg.tensor<[B/ep, S, D], bf16>, %i : !stg.tensor<[B/ep, S, A], i32>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/ep, S, D], bf16>, !stg.tensor<[B/ep, S, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
  // CHECK: -> !stg.tensor<[X/ep, T, D], bf16>
  %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
  stg.output
}

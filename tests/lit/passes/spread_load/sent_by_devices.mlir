// Devices with other sequences send other numbers of tokens: experts have the average, and an exchange is as large as the most.
// RUN: stagec-opt %s -p 'spread-load{sent=true}' | filecheck %s

stg.dim "B" = "ep"
stg.dim "S" = "3"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "A*B*S/X" average
dist.mesh <ep = 2>
dist.sequences over [ep] sums {S = #stg.size"sequence.new"} of "1x3@0|1x8@0"
// CHECK: stg.dim "S.sum" = "S*ep"
// CHECK: stg.dim "S.most" = "S"
// CHECK: stg.dim "T.load" = "A*B*S.sum/(X*ep)" average
// CHECK: stg.dim "T.load.max" = "A*B*S.most/X" average
// CHECK: dist.sent_load "T.load" of "T" experts "X" over [ep] sums [S]
stg.program "M" (%x : !stg.tensor<[B/ep, S, D], bf16>, %i : !stg.tensor<[B/ep, S, A], i32>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/ep, S, D], bf16>, !stg.tensor<[B/ep, S, A], i32>) -> (!stg.tensor<[X, T/ep, D], bf16>, !stg.tensor<[X], i64>)
  // CHECK: dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load" : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T.load, D], bf16>
  %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/ep, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
  // CHECK: !stg.tensor<[X/ep, T.load, D], bf16>
  %y = stg.unary "silu" %e : (!stg.tensor<[X/ep, T, D], bf16>) -> !stg.tensor<[X/ep, T, D], bf16>
  stg.output
}

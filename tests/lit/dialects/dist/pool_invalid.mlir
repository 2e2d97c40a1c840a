// A pool has ranks, and they are of its job.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.pool`: there are no ranks 8 to 8 of 24
dist.pool "prefill" ranks 8 to 8 of 24

// -----

// CHECK: error[E0709]: `dist.pool`: there are no ranks 8 to 25 of 24
dist.pool "decode" ranks 8 to 25 of 24

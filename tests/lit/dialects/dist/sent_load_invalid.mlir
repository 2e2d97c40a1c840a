// Tokens are sent along some axis, and depend on what sequences are served.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.sent_load`: tokens are sent along some axis
dist.sent_load "T.load" of "T" experts "X" over [] sums [S]

// -----

// CHECK: error[E0709]: `dist.sent_load`: tokens of experts depend on some sum
dist.sent_load "T.load" of "T" experts "X" over [ep] sums []

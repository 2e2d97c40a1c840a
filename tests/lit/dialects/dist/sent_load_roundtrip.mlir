// Experts have what some devices send on average.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.sent_load "T.load" of "T" experts "X" over [ep] sums [S]
dist.sent_load "T.load" of "T" experts "X" over [ep] sums [S]

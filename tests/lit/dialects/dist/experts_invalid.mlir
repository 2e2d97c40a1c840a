// Experts that are apart are on another pool than what is beside them.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `dist.experts`: experts are on a pool of their own
dist.experts on "all" others on "all"

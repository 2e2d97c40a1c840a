// A wait is for something.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `dist.wait`: there is nothing to wait for
dist.wait () :

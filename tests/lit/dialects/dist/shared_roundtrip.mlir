// A weight of several pools.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.shared "embed" first 4 of [vision, text]
dist.shared "embed" first 4 of [vision, text]

// Axes with their sizes, the slowest-varying rank first.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.mesh <dp = 16, pp = 4, tp = 8>
dist.mesh <dp = 16, pp = 4, tp = 8>

// CHECK: dist.mesh <>
dist.mesh <>

// How much a pool hands over or takes in each iteration of a series.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.handed_numbers {handed.0 = array<i64: 2048, 512>, handed.1 = array<i64: 0, 7>}
dist.handed_numbers {handed.0 = array<i64: 2048, 512>, handed.1 = array<i64: 0, 7>}

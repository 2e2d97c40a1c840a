// Every name has a number in each iteration.
// RUN: not stagec-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: names are of as many iterations
dist.handed_numbers {handed.0 = array<i64: 2048, 512>, handed.1 = array<i64: 7>}

// -----

// CHECK: a name has a number in each iteration
dist.handed_numbers {handed.0 = 7 : i64}

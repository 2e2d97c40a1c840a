// Sequences are counted, and of as many devices in each iteration.
// RUN: not stagec-opt %s --split-input-file 2>&1 | filecheck %s

// CHECK: `64@1500` are not sequences, like `64x1@1500`
dist.sequences over [dp] sums {} of "64@1500"

// -----

// CHECK: `4x2@10*3` computes nothing
dist.sequences over [dp] sums {} of "4x2@10*3"

// Without axes there is one device, and a sum is a size.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.sequences`: without axes there is one device
dist.sequences over [] sums {S = #stg.size"sequence.new"} of "1x1@5|2x1@5"

// -----

// CHECK: error[E0709]: `dist.sequences`: a sum is a size of one sequence
dist.sequences over [] sums {S = "many"} of "1x1@5"

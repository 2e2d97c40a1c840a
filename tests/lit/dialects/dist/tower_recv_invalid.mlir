// A value goes forward or backward, and values are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.tower_recv`: a value goes forward or backward or tied, not `up`
%v = dist.tower_recv "up" 0 of "vision" : !stg.tensor<[B, P, D], bf16>

// -----

// CHECK: error[E0709]: `dist.tower_recv`: numbers count from 0, not from -1
%v = dist.tower_recv "forward" -1 of "vision" : !stg.tensor<[B, P, D], bf16>

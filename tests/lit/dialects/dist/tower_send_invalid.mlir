// A value goes forward or backward.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

%v = "test.op"() : () -> !stg.tensor<[B, P, D], bf16>
// CHECK: error[E0709]: `dist.tower_send`: a value goes forward or backward or tied, not `down`
dist.tower_send "down" 1 to "text" %v : !stg.tensor<[B, P, D], bf16>

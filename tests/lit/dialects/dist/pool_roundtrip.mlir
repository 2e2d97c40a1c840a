// A module says which ranks of a job it is the program of.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: dist.pool "prefill" ranks 0 to 8 of 24
dist.pool "prefill" ranks 0 to 8 of 24

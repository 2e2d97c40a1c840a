// Numbers of ranks and of microbatches are expressions.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `p p` is not a size
sched.schedule "1f1b" ranks "p p" virtual 1 : i64 microbatches "mb"

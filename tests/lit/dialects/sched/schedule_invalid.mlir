// Numbers of ranks and of microbatches are expressions.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `p p` is not a size
sched.schedule "1f1b" ranks "p p" virtual 1 : i64 microbatches "mb"

// -----

// CHECK: error[E0709]: `sched.schedule`: a part of a pipeline has ranks of it, with one stage each
sched.schedule "1f1b" ranks "pp" from 5 of 5 virtual 1 microbatches "mb"

// -----

// CHECK: error[E0709]: `sched.schedule`: a part of a pipeline has ranks of it, with one stage each
sched.schedule "1f1b" ranks "pp" from 1 of 5 virtual 2 microbatches "mb"

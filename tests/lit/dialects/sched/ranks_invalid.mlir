// Ranks are somewhere along each axis that is named.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `sched.ranks`: no rank is at none of `pp`
sched.ranks "none" at {pp = []} run @all

// -----

// CHECK: error[E0708]
sched.ranks "none" at {pp = [-1]} run @all

// Rows are segments of tasks that there are.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: there is no task `G`
sched.tasks @a of "" layers {} { G = "0" }

// -----

// CHECK: error[E0708]: `x` is not a row, like `3@0.1`
sched.tasks @a of "" layers {} { F = "0 x" }

// -----

// CHECK: error[E0708]: a block of lines has no end
sched.tasks @a of "" layers {} { F = "0 (1@0+1" }

// -----

// CHECK: error[E0709]: `sched.tasks`: a row of `step` is behind one of `B` that there is not
sched.tasks @a of "" layers {} { B = "0", step = "1>B.1" }

// -----

// CHECK: error[E0709]: `sched.tasks`: the first row of `F` joins none before it
sched.tasks @a of "" layers {} { F = "~0" }

// -----

// CHECK: error[E0709]: `sched.tasks`: `L` is not a number of layers
sched.tasks @a of "" layers {L = -1 : i64} {}

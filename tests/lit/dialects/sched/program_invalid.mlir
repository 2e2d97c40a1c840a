// Tasks are of stages of the rank, each once.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `F0` is no task, like `F:0.3`
sched.program @a runs [0 @model] order "F0"

// -----

// CHECK: error[E0709]: `sched.program`: the order has a stage that the rank has not
sched.program @a runs [0 @model] order "F:1.0"

// -----

// CHECK: error[E0709]: `sched.program`: `F` runs once per microbatch
sched.program @a runs [0 @model] order "F:0"

// -----

// CHECK: error[E0709]: `sched.program`: `F:0.0` runs twice
sched.program @a runs [0 @model] order "F:0.0 F:0.0"

// -----

// CHECK: error[E0708]: a task has a pattern that there is not
sched.program @a runs [0 @model] order "F:0.0" waits {0 = "-1"} "1"

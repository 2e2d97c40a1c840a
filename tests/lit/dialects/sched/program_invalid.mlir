// Tasks are of stages of the rank, each once.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `F0` is not a task, like `F:0.3`
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

// -----

// CHECK: error[E0709]: `sched.program`: no number of `ahead` is below 0
sched.program @a runs [0 @model] order "F:0.0" ahead {0 = "-1"} "0"

// -----

// CHECK: error[E0708]: `3` does not say what waits for what, like `7.0<2.1`
sched.program @a runs [0 @model] order "F:0.0" held "3"

// -----

// CHECK: error[E0709]: `sched.program`: `held` has a node that waits for one after it
sched.program @a runs [0 @model] order "F:0.0" held "3.1<0.2"

// -----

// CHECK: error[E0709]: `sched.program`: `&F` follows nothing that it can overlap
sched.program @a runs [0 @model] order "&F:0.0 B:0.0"

// -----

// CHECK: error[E0709]: `sched.program`: `&SEND_F` follows nothing that it can overlap
sched.program @a runs [0 @model] order "F:0.0 &SEND_F:0.0>1"

// -----

// CHECK: error[E0709]: `sched.program`: no number of `rounds` is below 0
sched.program @a runs [0 @model] order "F:0.0 &B:0.1" rounds {0 = "-1"} "0 0"

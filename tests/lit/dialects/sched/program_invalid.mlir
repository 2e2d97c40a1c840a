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

// -----

// CHECK: error[E0708]: `F:0.0` does not say where a pass finds a unit, like `1@F:0.4<GATHER_B.2`
sched.program @a runs [0 @model] order "F:0.0" gathered "F:0.0"

// -----

// CHECK: error[E0709]: `sched.program`: `gathered` is about `GATHER_B:0.1`, which does not run
sched.program @a runs [0 @model] order "GATHER_B:0.0 B:0.0" gathered "0@B:0.0<GATHER_B.1"

// -----

// CHECK: error[E0709]: `sched.program`: `SEND_F` finds nothing in `GATHER_F`
sched.program @a runs [0 @model] order "GATHER_F:0.0 SEND_F:0.0>1" gathered "0@SEND_F:0.0<GATHER_F.0"

// -----

// CHECK: error[E0709]: `sched.program`: `F:0.0` finds unit 3 twice
sched.program @a runs [0 @model] order "pre:0 GATHER_F:0.0 F:0.0" gathered "3@F:0.0<pre 3@F:0.0<GATHER_F.0"

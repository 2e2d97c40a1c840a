// Which schedule, over how many ranks, stages and microbatches.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: sched.schedule "interleaved_1f1b" ranks "pp" virtual 8 microbatches "mb"
sched.schedule "interleaved_1f1b" ranks "pp" virtual 8 microbatches "mb"

// CHECK: sched.schedule "dualpipe" ranks "pp" virtual 2 microbatches "mb" transfers "as_sent"
sched.schedule "dualpipe" ranks "pp" virtual 2 microbatches "mb" transfers "as_sent"

// CHECK: sched.schedule "1f1b" ranks "pp" from 1 of 5 virtual 1 microbatches "mb"
sched.schedule "1f1b" ranks "pp" from 1 of 5 virtual 1 microbatches "mb"

// What says no plan is an excerpt: its ops are verified each by itself.
// RUN: stagec-opt %s | filecheck %s

// CHECK: sched.tasks @middle
sched.tasks @middle of "middle" layers {} {}

// What a rank runs: its stages, the order of their tasks, what rows wait for.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK:      sched.program @pp0 runs [0 @first, 4 @middle tied {"embed" = [0, 3]}] order "F:0.0 F:0.1 SEND_F:0.0>1 B:1.0" waits {
// CHECK-NEXT:   0 = "-1 0",
// CHECK-NEXT:   1 = "(2)*3"
// CHECK-NEXT: } "0 0 1 0"
sched.program @pp0 runs [0 @first, 4 @middle tied {"embed" = [0, 3]}] order "F:0.0 F:0.1 SEND_F:0.0>1 B:1.0" waits {
  0 = "-1 0",
  1 = "2 2 2"
} "0 0 1 0"

// CHECK: sched.program @all runs [0 @model] order "step:0"
sched.program @all runs [0 @model] order "step:0"

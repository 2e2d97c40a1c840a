// What a rank runs: its stages, the order of their tasks, where passes find gathered parameters, what rows wait for, which the device takes ahead, what else waits.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK:      sched.program @pp0 runs [0 @first, 4 @middle tied {"embed" = [0, 3]}] order "F:0.0 F:0.1 SEND_F:0.0>1 B:1.0" waits {
// CHECK-NEXT:   0 = "-1 0",
// CHECK-NEXT:   1 = "(2)*3"
// CHECK-NEXT: } "0 0 1 0"
sched.program @pp0 runs [0 @first, 4 @middle tied {"embed" = [0, 3]}] order "F:0.0 F:0.1 SEND_F:0.0>1 B:1.0" waits {
  0 = "-1 0",
  1 = "2 2 2"
} "0 0 1 0"

// CHECK:      sched.program @pp1 runs [1 @last] order "F:0.0" ahead {
// CHECK-NEXT:   0 = "0 0 2"
// CHECK-NEXT: } "0" held "(2+3.1<0.0)*4"
sched.program @pp1 runs [1 @last] order "F:0.0" ahead {
  0 = "0 0 2"
} "0" held "2.1<0.0 5.1<0.0 8.1<0.0 11.1<0.0"

// CHECK:      sched.program @pairs runs [1 @last] order "F:0.0 (F:0.1+1 &B:0.0+1)*3 B:0.3" rounds {
// CHECK-NEXT:   0 = "0 0",
// CHECK-NEXT:   1 = "1 3",
// CHECK-NEXT:   2 = "0 2"
// CHECK-NEXT: } "0 (1 2)*3 0"
sched.program @pairs runs [1 @last] order "F:0.0 F:0.1 &B:0.0 F:0.2 &B:0.1 F:0.3 &B:0.2 B:0.3" rounds {
  0 = "0 0",
  1 = "1 3",
  2 = "0 2"
} "0 1 2 1 2 1 2 0"

// CHECK: sched.program @all runs [0 @model] order "step:0"
sched.program @all runs [0 @model] order "step:0"

// CHECK: sched.program @freed runs [0 @model] order "pre:0 (F:0.0+1)*3 GATHER_B:0.0 (B:0.0+1)*3" gathered "(0@F:0.0+1<pre 1@F:0.0+1<pre)*3 (0@B:0.0+1<GATHER_B.0)*3"
sched.program @freed runs [0 @model] order "pre:0 F:0.0 F:0.1 F:0.2 GATHER_B:0.0 B:0.0 B:0.1 B:0.2" gathered "(0@F:0.0+1<pre 1@F:0.0+1<pre)*3 (0@B:0.0+1<GATHER_B.0)*3"

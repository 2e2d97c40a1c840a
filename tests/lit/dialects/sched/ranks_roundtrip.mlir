// Which ranks run a program.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: sched.ranks "pp0 ep1" at {pp = [0], ep = [1, 3]} run @pp0
sched.ranks "pp0 ep1" at {pp = [0], ep = [1, 3]} run @pp0

// CHECK: sched.ranks "all" at {} run @all
sched.ranks "all" at {} run @all

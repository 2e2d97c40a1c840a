// What nodes do with memory, and the plan of it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s
!t = !stg.tensor<[B], bf16>
%a, %b, %c = "test.op"() : () -> (!t, !t, !t)
// CHECK: effects <updates ["8*B"] master "fp32" overwrites 2 by 0> memory <[fetched in 2], frees 1, keeps 0 until 3, last 1, last 2>
%d = sched.compute "update" (%a, %b, %c) flops "0" reads "0" writes "0" on "compute" effects <updates ["8*B"] master "fp32" overwrites 2 by 0>
  memory <[fetched in 2], frees 1, keeps 0 until 3, last 1, last 2> : (!t, !t, !t) -> !t
// CHECK: effects <repeats "K/tp" along "H" dense batch ["B" = "B/dp", "H" = "H/tp"]> memory <[temporaries repeats 0 "K/tp", saved with, gradients of "fp32" stays until 4]>
%e, %f, %g = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" effects <repeats "K/tp" along "H" dense batch ["B" = "B/dp", "H" = "H/tp"]>
  memory <[temporaries repeats 0 "K/tp", saved with, gradients of "fp32" stays until 4]> : (!t) -> (!t, !t, !t)
// CHECK: effects <overwrites 0 by 0 alone overwrites 1 by 1 whole one_buffer makes gathered replaces "x"> memory <[cache stored, inputs], replaces "x">
%h, %i = sched.collective "all_gather" (%a, %b) over [dp] in "bf16" bytes "0" to "0" on "comm.dp"
  effects <overwrites 0 by 0 alone overwrites 1 by 1 whole one_buffer makes gathered replaces "x"> memory <[cache stored, inputs], replaces "x"> : (!t, !t) -> (!t, !t)
// CHECK: sched.host_copy "store"(%a) bytes "8" on "host.store" memory <[host], frees 0>
%j = sched.host_copy "store" (%a) bytes "8" on "host.store" memory <[host], frees 0> : (!t) -> !t

// A plan is about the operands and results that there are, in words that there are.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `sched.compute`: there is no operand 1, of 1
%d = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" effects <overwrites 1 by 0> : (!t) -> !t

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `sched.compute`: a plan of 2 buffers for 1 results
%d = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" memory <[saved, saved]> : (!t) -> !t

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `sched.compute`: there is no operand 3, of 1
%d = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" memory <[saved], frees 0 3> : (!t) -> !t

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `sched.compute`: two results are put into the memory of operand 0
%d, %e = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" memory <[saved in 0, saved in 0]> : (!t) -> (!t, !t)

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `sched.compute`: an update has a weight and a gradient for each
sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" effects <updates ["8*B"]> : (!t) -> ()

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: `weights` is not what memory is for
%d = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" memory <[weights]> : (!t) -> !t

// -----
!t = !stg.tensor<[B], bf16>
%a = "test.op"() : () -> !t
// CHECK: there is no dtype `fp33`
%d = sched.compute "x" (%a) flops "0" reads "0" writes "0" on "compute" memory <[gradients of "fp33"]> : (!t) -> !t

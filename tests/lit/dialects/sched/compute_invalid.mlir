// A cost is an expression.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `2 B` is not a size
%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16>
%y = sched.compute "exp" (%x) flops "2 B" reads "0" writes "0" on "compute" : (!stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>

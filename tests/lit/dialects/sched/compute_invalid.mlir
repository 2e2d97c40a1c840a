// A cost is an expression.
// RUN: stagec-opt %s --verify-diagnostics --parsing-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0708]: `2 B` is not a size
%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D], bf16>
%y = sched.compute "exp" (%x) flops "2 B" reads "0" writes "0" on "compute" : (!stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>

// -----

// CHECK: error[E0708]: `cooking` is not a kind of work: other, product,
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
%y = sched.compute "exp" (%x) flops "B" reads "0" writes "0" on "compute" as cooking : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `sched.compute`: `product` has a result, and 2 tensors of at least 0, 0 dims as its first operands
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
%y = sched.compute "exp" (%x) flops "B" reads "0" writes "0" on "compute" as product : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>

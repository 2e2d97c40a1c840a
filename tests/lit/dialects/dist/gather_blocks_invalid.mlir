// Stacks are of what is gathered; a buffer has one dtype.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.gather_blocks`: stacks are of what is gathered
%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>
%ks = dist.gather_blocks (%k) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>) -> !stg.stack<"cp - 1" x !stg.tensor<[S, K, E], bf16>>

// -----

// CHECK: error[E0709]: `dist.gather_blocks`: one buffer has one dtype, not bf16, fp32
%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>)
%ks, %vs = dist.gather_blocks (%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>) -> (!stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], bf16>>, !stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], fp32>>)

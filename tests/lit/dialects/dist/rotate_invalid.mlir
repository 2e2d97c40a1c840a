// What comes has the types of what goes; a buffer has one dtype.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.rotate`: what comes has the types of what goes
%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>
%k1 = dist.rotate (%k) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>) -> !stg.tensor<[S, K, E], bf16>

// -----

// CHECK: error[E0709]: `dist.rotate`: one buffer has one dtype, not bf16, fp32
%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>)
%k1, %v1 = dist.rotate (%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>) -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>)

// -----

// CHECK: error[E0709]: `dist.rotate`: there is nothing to hand over
dist.rotate () over [cp] : () -> ()

// A buffer has one dtype and something in it; nobody sends to itself.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.send`: one buffer has one dtype, not bf16, fp32
%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>)
dist.send (%k, %v) to 1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>

// -----

// CHECK: error[E0709]: `dist.send`: there is nothing to hand over
dist.send () to 1 over [cp] channel 0 :

// -----

// CHECK: error[E0709]: `dist.send`: a device is not a peer of its own
%k = "test.op"() : () -> !stg.tensor<[S/cp, K, E], bf16>
dist.send (%k) to 0 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>

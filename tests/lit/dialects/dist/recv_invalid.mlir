// A buffer has one dtype; nobody receives from itself.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.recv`: one buffer has one dtype, not bf16, fp32
%k, %v = dist.recv from -1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], fp32>

// -----

// CHECK: error[E0709]: `dist.recv`: a device is not a peer of its own
%k = dist.recv from 0 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>

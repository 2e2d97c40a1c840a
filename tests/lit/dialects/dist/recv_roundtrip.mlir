// The other end of a send: the same channel, the opposite distance.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %k, %v = dist.recv from -1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>
%k, %v = dist.recv from -1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>

// A send names its peer by a distance along axes, forwards or backwards.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)

// CHECK: dist.send(%k, %v) to 1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>
dist.send (%k, %v) to 1 over [cp] channel 0 : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>

// CHECK: dist.send(%k) to -2 over [a, b] channel 3 : !stg.tensor<[S/cp, K, E], bf16>
dist.send (%k) to -2 over [a, b] channel 3 : !stg.tensor<[S/cp, K, E], bf16>

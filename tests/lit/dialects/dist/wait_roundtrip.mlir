// Computation waits for values that it does not read.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)

// CHECK: dist.wait(%k, %v) : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>
dist.wait (%k, %v) : !stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>

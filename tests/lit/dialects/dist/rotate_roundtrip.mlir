// Values handed to the next device, as one buffer.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)

// CHECK: %k1, %v1 = dist.rotate(%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>) -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)
%k1, %v1 = dist.rotate (%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>) -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)

// The blocks of the others, as stacks: of all of them, or of those that matter.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k, %v = "test.op"() : () -> (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>)

// CHECK: %ks, %vs = dist.gather_blocks(%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>) -> (!stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], bf16>>, !stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], bf16>>)
%ks, %vs = dist.gather_blocks (%k, %v) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>, !stg.tensor<[S/cp, K, E], bf16>) -> (!stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], bf16>>, !stg.stack<"cp - 1" x !stg.tensor<[S/cp, K, E], bf16>>)

// CHECK: %few = dist.gather_blocks(%k) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>) -> !stg.stack<"cp.index" x !stg.tensor<[S/cp, K, E], bf16>>
%few = dist.gather_blocks (%k) over [cp] : (!stg.tensor<[S/cp, K, E], bf16>) -> !stg.stack<"cp.index" x !stg.tensor<[S/cp, K, E], bf16>>

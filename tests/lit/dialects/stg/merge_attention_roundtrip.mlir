// Attention to some keys and to some more, as attention to all; a block may be in a narrower dtype.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%o, %l, %b, %m = "test.op"() : () -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)

// CHECK: %r, %s = stg.merge_attention %o, %l and %b, %m : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>) -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)
%r, %s = stg.merge_attention %o, %l and %b, %m : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>) -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)

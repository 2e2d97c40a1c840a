// Both parts have the same queries, and come out in the type of the first.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.merge_attention`: operands disagree about `S`: split over [cp] and over []
%o, %l, %b, %m = "test.op"() : () -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)
%r, %s = stg.merge_attention %o, %l and %b, %m : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>) -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>)

// -----

// CHECK: error[E0709]: `stg.merge_attention`: <[S/cp, H, E], fp32> and <[S/cp, H], fp32> do not become <[S/cp, H, E], bf16> and <[S/cp, H], fp32>
%o, %l, %b, %m = "test.op"() : () -> (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)
%r, %s = stg.merge_attention %o, %l and %b, %m : (!stg.tensor<[S/cp, H, E], fp32>, !stg.tensor<[S/cp, H], fp32>, !stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>) -> (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], fp32>)

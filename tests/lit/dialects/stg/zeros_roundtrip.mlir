// A tensor to add to.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %z = stg.zeros : !stg.tensor<[B/dp, D], bf16, partial [tp]>
%z = stg.zeros : !stg.tensor<[B/dp, D], bf16, partial [tp]>

// One axis has no levels.
// RUN: stagec-opt %s -p 'split-collectives{axes="tp"}' | filecheck %s

// CHECK-NOT: made_by
%y = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
%h = dist.all_gather %y dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>

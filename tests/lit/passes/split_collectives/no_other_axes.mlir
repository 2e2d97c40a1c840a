// Only collectives over exactly these axes are split.
// RUN: stagec-opt %s -p 'split-collectives{axes="dp","tp"}' | filecheck %s

// CHECK-NOT: made_by
%x, %y = "test.op"() : () -> (!stg.tensor<[S/(cp*dp*tp), D], bf16>, !stg.tensor<[S/tp, D], bf16>)
%g = dist.all_gather %x dim "S" over [cp, dp, tp] : !stg.tensor<[S/(cp*dp*tp), D], bf16> -> !stg.tensor<[S, D], bf16>
%h = dist.all_gather %y dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>

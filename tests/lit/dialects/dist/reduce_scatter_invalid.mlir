// What is summed over an axis is partial over it, and is then split over it.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.reduce_scatter`: <[D], bf16> is not partial over [tp]
%x = "test.op"() : () -> !stg.tensor<[D], bf16>
%y = dist.reduce_scatter %x dim "D" over [tp] : !stg.tensor<[D], bf16> -> !stg.tensor<[D/tp], bf16>

// -----

// CHECK: error[E0709]: `dist.reduce_scatter`: <[S/cp, D], bf16, partial [tp]> becomes <[S/(cp*tp), D], bf16>, not <[S/(tp*cp), D], bf16>
%x = "test.op"() : () -> !stg.tensor<[S/cp, D], bf16, partial [tp]>
%y = dist.reduce_scatter %x dim "S" over [tp] : !stg.tensor<[S/cp, D], bf16, partial [tp]> -> !stg.tensor<[S/(tp*cp), D], bf16>

// -----

// CHECK: error[E0709]: `dist.reduce_scatter`: <[B, S, D], bf16, partial [dp]> is not partial over [dp, tp]
%x = "test.op"() : () -> !stg.tensor<[B, S, D], bf16, partial [dp]>
%y = dist.reduce_scatter %x dim "B" over [dp, tp] with <[S/tp]> : !stg.tensor<[B, S, D], bf16, partial [dp]> -> !stg.tensor<[B/dp, S/tp, D], bf16>

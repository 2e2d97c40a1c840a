// The axes split the dim, as its most minor ones.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.piece`: `S/(tp*cp)` is not split over [tp] last
%x = "test.op"() : () -> !stg.tensor<[S/(tp*cp), D], bf16>
%p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/(tp*cp), D], bf16> -> !stg.tensor<[S/(tp.piece*cp), D], bf16>

// -----

// CHECK: error[E0709]: `dist.piece`: <[S/tp, D], bf16> has no dim `B`
%x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
%p = dist.piece %x dim "B" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S/tp.piece, D], bf16>

// -----

// CHECK: error[E0709]: `dist.piece`: there is no axis to cut over
%x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
%p = dist.piece %x dim "S" over [] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S/tp, D], bf16>

// -----

// CHECK: error[E0709]: `dist.piece`: !stg.tensor<[S/tp, D], bf16> becomes !stg.tensor<[S/tp.piece, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
%p = dist.piece %x dim "S" over [tp] : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>

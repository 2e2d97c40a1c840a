// Only the most minor axes of a dim can be gathered.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_gather`: `S/(cp*tp)` is not split over [cp] last
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%g = dist.all_gather %x dim "S" over [cp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/tp, D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: `D` is not split over [tp] last
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%g = dist.all_gather %x dim "D" over [tp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: <[B/dp, S/(cp*tp), D], bf16> becomes <[B/dp, S/cp, D], bf16>, not <[B/dp, S, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S, D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: there is no dim `T` in <[B/dp, S/(cp*tp), D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%g = dist.all_gather %x dim "T" over [tp] : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: `S/(cp*tp)` is not split over [cp] last
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/(cp*tp), D], bf16>
%g = dist.all_gather %x dim "B" over [dp, cp] with <[S/cp]> : !stg.tensor<[B/dp, S/(cp*tp), D], bf16> -> !stg.tensor<[B, S/tp, D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: <[B/dp, S/tp, D], bf16> becomes <[B, S, D], bf16>, not <[B, S/tp, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/tp, D], bf16>
%g = dist.all_gather %x dim "B" over [dp, tp] with <[S/tp]> : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B, S/tp, D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_gather`: it does not run over [tp]
%x = "test.op"() : () -> !stg.tensor<[B/dp, S/tp, D], bf16>
%g = dist.all_gather %x dim "B" over [dp] with <[S/tp]> : !stg.tensor<[B/dp, S/tp, D], bf16> -> !stg.tensor<[B, S, D], bf16>

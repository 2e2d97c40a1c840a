// A slice splits one dim further, as its most minor axis.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.slice`: <[B/dp, D], bf16> becomes <[B/(dp*tp), D], bf16>, not <[B/(tp*dp), D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>
%y = dist.slice %x dim "B" over [tp] : !stg.tensor<[B/dp, D], bf16> -> !stg.tensor<[B/(tp*dp), D], bf16>

// -----

// CHECK: error[E0709]: `dist.slice`: <[B], bf16> does not become <[D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B], bf16>
%y = dist.slice %x dim "B" over [tp] : !stg.tensor<[B], bf16> -> !stg.tensor<[D], bf16>

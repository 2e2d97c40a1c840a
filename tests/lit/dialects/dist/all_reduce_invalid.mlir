// What is summed over an axis is partial over it.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_reduce`: there is no reduction `mean`
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = dist.all_reduce "mean" %x over [tp] : !stg.tensor<[D], bf16, partial [tp]> -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_reduce`: <[D], bf16, partial [tp]> is not partial over [cp]
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = dist.all_reduce "sum" %x over [cp] : !stg.tensor<[D], bf16, partial [tp]> -> !stg.tensor<[D], bf16>

// -----

// CHECK: error[E0709]: `dist.all_reduce`: <[D], bf16, partial [tp]> becomes <[D], bf16>, not <[D/tp], bf16>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = dist.all_reduce "sum" %x over [tp] : !stg.tensor<[D], bf16, partial [tp]> -> !stg.tensor<[D/tp], bf16>

// The dim that gives up its split has it as its most minor one.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.all_to_all`: `S/(cp*tp)` is not split over [cp] last
%x = "test.op"() : () -> !stg.tensor<[S/(cp*tp), H], bf16>
%y = dist.all_to_all %x gather "S" scatter "H" over [cp] : !stg.tensor<[S/(cp*tp), H], bf16> -> !stg.tensor<[S/tp, H/cp], bf16>

// -----

// CHECK: error[E0709]: `dist.all_to_all`: <[S/tp, H], bf16> becomes <[S, H/tp], bf16>, not <[S, H], bf16>
%x = "test.op"() : () -> !stg.tensor<[S/tp, H], bf16>
%y = dist.all_to_all %x gather "S" scatter "H" over [tp] : !stg.tensor<[S/tp, H], bf16> -> !stg.tensor<[S, H], bf16>

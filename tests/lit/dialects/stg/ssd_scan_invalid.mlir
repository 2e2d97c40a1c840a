// Operands of a scan are over its sequence, which is whole, its heads and its state.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.ssd_scan`: <[S, H], bf16> does not end in sequence, heads, width
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>)
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>) -> !stg.tensor<[S, H], bf16>

// -----

// CHECK: error[E0709]: `stg.ssd_scan`: `dt` is <[S], bf16>, not over [S, H]
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>)
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>) -> !stg.tensor<[S, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.ssd_scan`: `b` is <[N], bf16>, not over [S], groups and state
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[N], bf16>)
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[N], bf16>, !stg.tensor<[N], bf16>) -> !stg.tensor<[S, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.ssd_scan`: each device needs all of `S` in <[S/cp, H, E], bf16>
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S/cp, N], bf16>)
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S/cp, H, E], bf16>, !stg.tensor<[S/cp, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S/cp, N], bf16>, !stg.tensor<[S/cp, N], bf16>) -> !stg.tensor<[S/cp, H, E], bf16>

// -----

// CHECK: error[E0709]: `stg.ssd_scan`: the result is <[S, H, E], bf16>, but its operands make it <[S, H, E], bf16, partial [tp]>
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N/tp], bf16>)
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N/tp], bf16>, !stg.tensor<[S, N/tp], bf16>) -> !stg.tensor<[S, H, E], bf16>

// A scan's gradients have the shapes of its operands; dy has that of x.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.ssd_scan_grad`: dy is <[S, H, F], bf16>, x <[S, H, E], bf16>
%dy, %x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H, F], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>)
%dx, %dt, %da, %db, %dc = stg.ssd_scan_grad %dy, %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H, F], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], bf16>, !stg.tensor<[H], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>)

// -----

// CHECK: error[E0709]: `stg.ssd_scan_grad`: the result is <[S, N], bf16>, but its operands make it <[S, N], bf16, partial [tp]>
%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[S, N], bf16>)
%dx, %dt, %da, %db, %dc = stg.ssd_scan_grad %x, %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>) -> (!stg.tensor<[S, H/tp, E], bf16>, !stg.tensor<[S, H/tp], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[S, N], bf16>, !stg.tensor<[S, N], bf16>)

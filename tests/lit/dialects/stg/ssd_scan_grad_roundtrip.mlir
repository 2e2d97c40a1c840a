// The gradients of a scan: what all heads share has terms on each device of a split over heads.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %t, %a, %b = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>)

// CHECK: %dx, %dt, %da, %db, %dc = stg.ssd_scan_grad %x, %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32, partial [dp]>, !stg.tensor<[B/dp, S, N], bf16, partial [tp]>, !stg.tensor<[B/dp, S, N], bf16, partial [tp]>)
%dx, %dt, %da, %db, %dc = stg.ssd_scan_grad %x, %x, %t, %a, %b, %b chunk "Q"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32, partial [dp]>, !stg.tensor<[B/dp, S, N], bf16, partial [tp]>, !stg.tensor<[B/dp, S, N], bf16, partial [tp]>)

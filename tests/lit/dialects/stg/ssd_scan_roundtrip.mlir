// A scan split over heads: b and c are the same for all heads, or split in groups as these are.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %t, %a, %b, %g = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, G/tp, N], bf16>)

// CHECK: %y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%y = stg.ssd_scan %x, %t, %a, %b, %b chunk "Q"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, N], bf16>, !stg.tensor<[B/dp, S, N], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// CHECK: %z = stg.ssd_scan %x, %t, %a, %g, %g chunk "256" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, G/tp, N], bf16>, !stg.tensor<[B/dp, S, G/tp, N], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%z = stg.ssd_scan %x, %t, %a, %g, %g chunk "256"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>, !stg.tensor<[H/tp], fp32>, !stg.tensor<[B/dp, S, G/tp, N], bf16>, !stg.tensor<[B/dp, S, G/tp, N], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

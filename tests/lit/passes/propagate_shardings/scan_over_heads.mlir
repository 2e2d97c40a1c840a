// A scan and a filter are split over heads, not over the sequence; groups of heads are split as heads are.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 2>
dist.rule [H] over [tp]
dist.rule [S] over [tp]
stg.program "M" (%t : !stg.tensor<[S, H], fp32>) {
  %x = stg.weight "x" : !stg.tensor<[S, H, E], fp32>
  %f = stg.weight "filter" : !stg.tensor<[W, H], fp32>
  %a = stg.weight "a" : !stg.tensor<[H], fp32>
  %b = stg.weight "b" : !stg.tensor<[S, G, N], fp32>
  // CHECK:      stg.causal_conv {{.*}} over "S" {placement = #dist.placement<[H/tp]>}
  // CHECK-SAME: -> !stg.tensor<[S, H/tp, E], fp32>
  %c = stg.causal_conv %x, %f over "S" : (!stg.tensor<[S, H, E], fp32>, !stg.tensor<[W, H], fp32>) -> !stg.tensor<[S, H, E], fp32>
  // CHECK:      stg.ssd_scan {{.*}} chunk "256" {placement = #dist.placement<[H/tp]>}
  // CHECK-SAME: !stg.tensor<[S, G/tp, N], fp32>, !stg.tensor<[S, G/tp, N], fp32>) -> !stg.tensor<[S, H/tp, E], fp32>
  %y = stg.ssd_scan %c, %t, %a, %b, %b chunk "256" : (!stg.tensor<[S, H, E], fp32>, !stg.tensor<[S, H], fp32>, !stg.tensor<[H], fp32>, !stg.tensor<[S, G, N], fp32>, !stg.tensor<[S, G, N], fp32>) -> !stg.tensor<[S, H, E], fp32>
  stg.output %y : !stg.tensor<[S, H, E], fp32>
}

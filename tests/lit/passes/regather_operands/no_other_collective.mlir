// What was reduced, or gathered for the backward pass alone, stays as it is.
// RUN: stagec-opt %s -p 'regather-operands' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp], bf16>, %p : !stg.tensor<[S], bf16, partial [tp]>) {
  // CHECK:      %[[R:[^ ]*]] = dist.all_reduce
  // CHECK-NEXT: %[[G:[^ ]*]] = dist.all_gather
  // CHECK-NEXT: stg.mul %[[R]], %[[G]]
  %r = dist.all_reduce "sum" %p over [tp] : !stg.tensor<[S], bf16, partial [tp]> -> !stg.tensor<[S], bf16>
  %g = dist.all_gather %x dim "S" over [tp] {phase = "recompute"} : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
  %b = stg.mul %r, %g {phase = "wgrad"} : (!stg.tensor<[S], bf16>, !stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  stg.output
}

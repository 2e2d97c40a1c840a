// What recomputation gathers is gathered once more for the backward pass, from the recomputed shard.
// RUN: stagec-opt %s -p 'regather-operands' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp], bf16>) {
  // CHECK:      %[[FIRST:[^ ]*]] = dist.all_gather %x {{.*}}phase = "recompute"
  %g = dist.all_gather %x dim "S" over [tp] {phase = "recompute"} : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
  // CHECK-NEXT: stg.unary "exp" %[[FIRST]]
  %a = stg.unary "exp" %g {phase = "recompute"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  // CHECK-NEXT: %[[AGAIN:[^ ]*]] = dist.all_gather %x {{.*}}phase = "wgrad"
  // CHECK-NEXT: stg.mul %[[AGAIN]]
  %b = stg.mul %g, %a {phase = "wgrad"} : (!stg.tensor<[S], bf16>, !stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  stg.output
}

// What input gradients read too is gathered once for all readers, in phase `bwd`.
// RUN: stagec-opt %s -p 'regather-operands' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp], bf16>) {
  %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
  // CHECK:      %[[AGAIN:[^ ]*]] = dist.all_gather %x dim "S" over [tp] {phase = "bwd"
  // CHECK-NEXT: stg.unary "exp" %[[AGAIN]] {phase = "wgrad"}
  // CHECK-NEXT: stg.unary "neg" %[[AGAIN]] {phase = "bwd"}
  %a = stg.unary "exp" %g {phase = "wgrad"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  %b = stg.unary "neg" %g {phase = "bwd"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  stg.output
}

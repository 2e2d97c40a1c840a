// Only what calls of the named modules alone read is gathered again.
// RUN: stagec-opt %s -p 'regather-operands{modules="Attention"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp], bf16>, %y : !stg.tensor<[S/tp], bf16>) {
  // CHECK:     %[[G:[^ ]*]] = dist.all_gather %x
  // CHECK:     %[[H:[^ ]*]] = dist.all_gather %y
  %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
  %h = dist.all_gather %y dim "S" over [tp] : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
  // CHECK-NEXT: %[[AGAIN:[^ ]*]] = dist.all_gather %x {{.*}}phase = "wgrad"
  // CHECK-NEXT: stg.unary "exp" %[[AGAIN]]
  // CHECK-NEXT: stg.unary "exp" %[[H]]
  // CHECK-NEXT: stg.unary "neg" %[[H]]
  %a = stg.unary "exp" %g {phase = "wgrad", scope = "Block.Attention"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  %b = stg.unary "exp" %h {phase = "wgrad", scope = "Block.Attention"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  %c = stg.unary "neg" %h {phase = "wgrad", scope = "Block.Experts"} : (!stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
  stg.output
}

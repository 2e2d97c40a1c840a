// An op whose operands and results are spread as it is moves nothing.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
  // CHECK-NOT: dist.reshard
  // CHECK-NOT: placement
  %y = stg.unary "silu" %x {placement = #dist.placement<[S/tp]>} : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  stg.output %y : !stg.tensor<[S/tp, D], bf16>
}

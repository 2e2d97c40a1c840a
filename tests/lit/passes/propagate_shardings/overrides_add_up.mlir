// Overrides of different dims of one value hold together.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <cp = 2, tp = 2>
dist.rule [D] over [cp, tp]
stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S, H, D], bf16>
  %a = stg.place %x [S] over [cp] : (!stg.tensor<[S, H, D], bf16>) -> !stg.tensor<[S, H, D], bf16>
  %b = stg.place %a [H] over [tp] : (!stg.tensor<[S, H, D], bf16>) -> !stg.tensor<[S, H, D], bf16>
  // CHECK: stg.unary "exp" {{.*}} {placement = #dist.placement<[S/cp, H/tp]>}
  %y = stg.unary "exp" %b : (!stg.tensor<[S, H, D], bf16>) -> !stg.tensor<[S, H, D], bf16>
  stg.output
}

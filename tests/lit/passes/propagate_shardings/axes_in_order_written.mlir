// Axes split a dim in the order in which its rule names them, the first the major one.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <cp = 2, tp = 4>
dist.rule [S] over [cp, tp]
dist.rule [T] over [tp, cp]
stg.program "M" () {
  %x, %y = "test.op"() : () -> (!stg.tensor<[S, D], bf16>, !stg.tensor<[T, D], bf16>)
  // CHECK: stg.unary {{.*}} {placement = #dist.placement<[S/(cp*tp)]>}
  %a = stg.unary "exp" %x : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
  // CHECK: stg.unary {{.*}} {placement = #dist.placement<[T/(tp*cp)]>}
  %b = stg.unary "exp" %y : (!stg.tensor<[T, D], bf16>) -> !stg.tensor<[T, D], bf16>
  stg.output
}

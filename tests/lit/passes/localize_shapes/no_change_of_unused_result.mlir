// A result that nothing reads stays as it was computed: a log-sum-exp of a forward pass.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
  // CHECK:     stg.reduce {{.*}} -> !stg.tensor<[D], bf16, partial [tp]>
  // CHECK-NOT: dist.reshard
  %y = stg.reduce "sum" %x over [S] {placement = #dist.placement<[S/tp]>} : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[D], bf16>
  stg.output
}

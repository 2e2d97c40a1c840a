// An override of what enters a repeat alone is not of what the repeat carries: that has one placement.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 2>
dist.rule [S] over [tp]
stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S, D], bf16>
  // CHECK: %[[PLACED:[^ ]*]] = stg.place
  %p = stg.place %x [D] over [tp] : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
  // CHECK: stg.unary "relu" %[[PLACED]] {placement = #dist.placement<[D/tp]>}
  %r = stg.unary "relu" %p : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
  // CHECK: stg.repeat "L" carry(%h = %x : !stg.tensor<[S/tp, D], bf16>)
  %y = stg.repeat "L" carry(%h = %p : !stg.tensor<[S, D], bf16>) -> (!stg.tensor<[S, D], bf16>) {
    %n = stg.unary "exp" %h : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
    stg.yield %n : !stg.tensor<[S, D], bf16>
  }
  stg.output
}

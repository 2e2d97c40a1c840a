// Both names of a renamed dim are one index: a rule for the old name splits the op, one for the new name its result.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <cp = 2>
dist.rule [S] over [cp]
stg.program "M" () {
  %k = "test.op"() : () -> !stg.tensor<[B, S], bf16>
  // CHECK: stg.rename %k [S] to [T] {placement = #dist.placement<[S/cp]>} : (!stg.tensor<[B, S/cp], bf16>) -> !stg.tensor<[B, T], bf16>
  %t = stg.rename %k [S] to [T] : (!stg.tensor<[B, S], bf16>) -> !stg.tensor<[B, T], bf16>
  stg.output
}

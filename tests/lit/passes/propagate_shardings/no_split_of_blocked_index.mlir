// The width that a rotary embedding rotates stays whole, though its operand and its result are split there.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <tp = 2>
dist.rule [E] over [tp]
stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S, E], bf16>
  // CHECK: stg.rope %x {placement = #dist.placement<[]>} : (!stg.tensor<[S, E/tp], bf16>) -> !stg.tensor<[S, E/tp], bf16>
  %y = stg.rope %x : (!stg.tensor<[S, E], bf16>) -> !stg.tensor<[S, E], bf16>
  stg.output
}

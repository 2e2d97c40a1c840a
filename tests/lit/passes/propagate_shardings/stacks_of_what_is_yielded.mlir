// Stacks are of what the body yields, through nested repeats.
// RUN: stagec-opt %s -p propagate-shardings | filecheck %s

dist.mesh <dp = 2>
dist.rule [B] over [dp]
stg.program "M" () {
  // CHECK: stg.repeat "L" -> (!stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[B/dp], bf16>>>)
  %s = stg.repeat "L" -> (!stg.stack<"L" x !stg.stack<"M" x !stg.tensor<[B], bf16>>>) {
    // CHECK: stg.repeat "M" -> (!stg.stack<"M" x !stg.tensor<[B/dp], bf16>>)
    %t = stg.repeat "M" -> (!stg.stack<"M" x !stg.tensor<[B], bf16>>) {
      %x = "test.op"() : () -> !stg.tensor<[B], bf16>
      stg.yield %x : !stg.tensor<[B], bf16>
    }
    stg.yield %t : !stg.stack<"M" x !stg.tensor<[B], bf16>>
  }
  stg.output
}

// What an inner repeat saves is loaded in the repeat that mirrors it.
// RUN: stagec-opt %s -p 'offload-activations{what="exp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[D], bf16>) {
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[D], bf16>)
      -> (!stg.tensor<[D], bf16>, !stg.stack<"L" x !stg.stack<"2" x !stg.tensor<[D], bf16>>>) {
    %i, %ies = stg.repeat "2" carry(%g = %h : !stg.tensor<[D], bf16>) -> (!stg.tensor<[D], bf16>, !stg.stack<"2" x !stg.tensor<[D], bf16>>) {
      // CHECK: %[[E:[^ ]*]] = stg.unary "exp"
      %e = stg.unary "exp" %g : (!stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>
      // CHECK-NEXT: dist.store(%[[E]])
      stg.yield %e, %e : !stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>
    }
    stg.yield %i, %ies : !stg.tensor<[D], bf16>, !stg.stack<"2" x !stg.tensor<[D], bf16>>
  }
  // CHECK: stg.repeat "L" reverse
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[D], bf16>)
      slice(%s = %es : !stg.stack<"L" x !stg.stack<"2" x !stg.tensor<[D], bf16>>>)
      -> (!stg.tensor<[D], bf16>) attributes {phase = "bwd"} {
    // CHECK-NEXT: stg.repeat "2" reverse
    %di = stg.repeat "2" reverse carry(%dg = %dy : !stg.tensor<[D], bf16>) slice(%t = %s : !stg.stack<"2" x !stg.tensor<[D], bf16>>)
        -> (!stg.tensor<[D], bf16>) attributes {phase = "bwd"} {
      // CHECK-NEXT: dist.load
      %d = stg.mul %t, %dg {phase = "bwd"} : (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[D], bf16>
      stg.yield %d : !stg.tensor<[D], bf16>
    }
    stg.yield %di : !stg.tensor<[D], bf16>
  }
  stg.output
}

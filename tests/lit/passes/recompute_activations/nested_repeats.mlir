// A value of an inner repeat is saved through the stacks of both; the inner repeat itself is not run again.
// RUN: stagec-opt %s -p 'recompute-activations{what="exp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %y, %ess = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>)
      -> (!stg.tensor<[B], bf16>, !stg.stack<"L" x !stg.stack<"N" x !stg.tensor<[B], bf16>>>) {
    // CHECK: %{{.*}}, %[[INNER:[^ ]*]] = stg.repeat "N" carry
    %i, %es = stg.repeat "N" carry(%g = %h : !stg.tensor<[B], bf16>)
        -> (!stg.tensor<[B], bf16>, !stg.stack<"N" x !stg.tensor<[B], bf16>>) {
      // CHECK: stg.unary "neg"
      %m = stg.unary "neg" %g : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
      // CHECK: %[[E:[^ ]*]] = stg.unary "exp" %[[M:[^ ]*]] :
      %e = stg.unary "exp" %m : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
      // CHECK: stg.yield %[[E]], %[[M]] :
      stg.yield %e, %e : !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>
    }
    // CHECK: stg.yield %{{.*}}, %[[INNER]] :
    stg.yield %i, %es : !stg.tensor<[B], bf16>, !stg.stack<"N" x !stg.tensor<[B], bf16>>
  }
  // CHECK:      stg.repeat "L" reverse carry({{.*}}) slice(%[[STACK:[^ ]*]] =
  // CHECK-NEXT: stg.repeat "N" reverse carry({{.*}}) slice(%[[SAVED:[^ ]*]] = %[[STACK]] :
  // CHECK-NEXT: stg.unary "exp" %[[SAVED]] {phase = "recompute"
  // CHECK-NEXT: stg.mul
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B], bf16>)
      slice(%ss = %ess : !stg.stack<"L" x !stg.stack<"N" x !stg.tensor<[B], bf16>>>)
      -> (!stg.tensor<[B], bf16>) attributes {phase = "bwd"} {
    %di = stg.repeat "N" reverse carry(%dg = %dy : !stg.tensor<[B], bf16>)
        slice(%s = %ss : !stg.stack<"N" x !stg.tensor<[B], bf16>>)
        -> (!stg.tensor<[B], bf16>) attributes {phase = "bwd"} {
      %dm = stg.mul %dg, %s {phase = "bwd"}
        : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
      stg.yield %dm : !stg.tensor<[B], bf16>
    }
    stg.yield %di : !stg.tensor<[B], bf16>
  }
  stg.output
}

// A dropped value is made again just before the first op that reads it; its operand is saved in its place.
// RUN: stagec-opt %s -p 'recompute-activations{what="exp"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  %y, %es = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>)
      -> (!stg.tensor<[B], bf16>, !stg.stack<"L" x !stg.tensor<[B], bf16>>) {
    %m = stg.unary "neg" %h : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK:      %[[E:[^ ]*]] = stg.unary "exp" %[[M:[^ ]*]] :
    %e = stg.unary "exp" %m : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK-NEXT: stg.yield %[[E]], %[[M]] :
    stg.yield %e, %e : !stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>
  }
  // CHECK:      reverse carry({{.*}}) slice(%[[SAVED:[^ ]*]] =
  %dx = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[B], bf16>)
      slice(%s = %es : !stg.stack<"L" x !stg.tensor<[B], bf16>>)
      -> (!stg.tensor<[B], bf16>) attributes {phase = "bwd"} {
    // CHECK-NEXT: %[[DN:[^ ]*]] = stg.unary "neg"
    %dn = stg.unary "neg" %dy {phase = "bwd"} : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    // CHECK-NEXT: %[[AGAIN:[^ ]*]] = stg.unary "exp" %[[SAVED]] {phase = "recompute", made_by = "recompute-activations"}
    // CHECK-NEXT: stg.mul %[[DN]], %[[AGAIN]]
    %dm = stg.mul %dn, %s {phase = "bwd"}
      : (!stg.tensor<[B], bf16>, !stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    stg.yield %dm : !stg.tensor<[B], bf16>
  }
  stg.output
}

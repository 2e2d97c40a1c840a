// Where nothing is saved nothing changes.
// RUN: stagec-opt %s -p 'recompute-activations{what="full"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[B], bf16>) {
  // CHECK:      stg.repeat
  // CHECK-NEXT: stg.unary "exp"
  // CHECK-NEXT: stg.yield
  // CHECK-NEXT: }
  // CHECK-NEXT: stg.output
  %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B], bf16>) -> (!stg.tensor<[B], bf16>) {
    %e = stg.unary "exp" %h : (!stg.tensor<[B], bf16>) -> !stg.tensor<[B], bf16>
    stg.yield %e : !stg.tensor<[B], bf16>
  }
  stg.output
}

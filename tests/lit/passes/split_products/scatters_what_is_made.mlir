// The gradient of a weight that is scattered itself stays before that.
// RUN: stagec-opt %s -p 'split-products{pieces=4}' | filecheck %s

dist.mesh <tp = 2>
stg.dim "S" = "6"
stg.program "M" (%dy : !stg.tensor<[B/tp, S], bf16>, %x : !stg.tensor<[B/tp, D], bf16>) {
  // CHECK:      %[[DW:.*]] = stg.contract
  // CHECK-NEXT: dist.reduce_scatter %[[DW]] dim "S" over [tp]
  %dw = stg.contract %dy, %x over [B] {phase = "wgrad"}
    : (!stg.tensor<[B/tp, S], bf16>, !stg.tensor<[B/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %part = dist.reduce_scatter %dw dim "S" over [tp] {phase = "wgrad"}
    : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  "test.op"(%part) : (!stg.tensor<[S/tp, D], bf16>) -> ()
  stg.output
}

// Products of experts, of which there are several at once, are not in pieces.
// RUN: stagec-opt %s -p split-products | filecheck %s

dist.mesh <tp = 2>
stg.dim "S" = "64"
stg.program "M" (%x : !stg.tensor<[X, S/tp, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[X, D, F], bf16>
  // CHECK-NOT: stg.repeat
  // CHECK:     dist.all_gather %x dim "S" over [tp]
  %g = dist.all_gather %x dim "S" over [tp] : !stg.tensor<[X, S/tp, D], bf16> -> !stg.tensor<[X, S, D], bf16>
  %y = stg.contract %g, %w over [D] : (!stg.tensor<[X, S, D], bf16>, !stg.tensor<[X, D, F], bf16>) -> !stg.tensor<[X, S, F], bf16>
  "test.op"(%y) : (!stg.tensor<[X, S, F], bf16>) -> ()
  stg.output
}

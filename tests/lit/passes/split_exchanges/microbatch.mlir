// Copies are counted for the tokens that a device computes with at a time: of 2 it sends 3 to nodes, 12 of its 8.
// RUN: stagec-opt %s -p 'split-exchanges{batch="B" microbatch=2}' | filecheck %s

stg.dim "B" = "32"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "8"
dist.mesh <en = 2, el = 2>
// CHECK: stg.dim "T.outer" = "3*B/(2*en)"
// CHECK: stg.dim "T.inner" = "2*B/(el*en)"
stg.program "M" (%x : !stg.tensor<[B/(en*el), D], bf16>, %i : !stg.tensor<[B/(en*el), A], i32>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[X], i64>)
  %e = dist.reshard %r : !stg.tensor<[X, T/(en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  "test.op"(%e) : (!stg.tensor<[X/(en*el), T, D], bf16>) -> ()
  stg.output
}

// Without a limit a token goes to as many nodes as its experts are in on average.
// 2 (1 - C(4,2)/C(8,2)) = 11/7 of two, 12.57 copies of 8 tokens; 4 (1 - C(6,2)/C(8,2)) = 13/7 of four devices, 14.86 copies.
// RUN: stagec-opt %s -p split-exchanges | filecheck %s

stg.dim "B" = "32"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "8"
dist.mesh <en = 2, el = 2>
// CHECK:      stg.dim "X.outer" = "en"
// CHECK-NEXT: stg.dim "T.outer" = "13*B/(8*en)"
// CHECK-NEXT: stg.dim "X.inner" = "el*en"
// CHECK-NEXT: stg.dim "T.inner" = "15*B/(8*el*en)"
stg.program "M" (%x : !stg.tensor<[B/(en*el), D], bf16>, %i : !stg.tensor<[B/(en*el), A], i32>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[X], i64>)
  %e = dist.reshard %r : !stg.tensor<[X, T/(en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  "test.op"(%e) : (!stg.tensor<[X/(en*el), T, D], bf16>) -> ()
  stg.output
}

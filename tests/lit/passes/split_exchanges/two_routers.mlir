// Two routers that share dims, one of them with a limit: their copies are not as many, so their dims are not the same.
// RUN: stagec-opt %s -p split-exchanges | filecheck %s

stg.dim "B" = "32"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "8"
dist.mesh <en = 2, el = 2>
// CHECK: stg.dim "T.outer" = "13*B/(8*en)"
// CHECK: stg.dim "T.outer2" = "B/en"
stg.program "M" (%x : !stg.tensor<[B/(en*el), D], bf16>, %s : !stg.tensor<[B/(en*el), X], bf16>, %i : !stg.tensor<[B/(en*el), A], i32>) {
  // CHECK: stg.dispatch %x by %i to "X.outer" "T.outer" dropless
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[X], i64>)
  %e = dist.reshard %r : !stg.tensor<[X, T/(en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  %g, %j = stg.topk %s over "X" to "A" groups "2" limit "1"
    : (!stg.tensor<[B/(en*el), X], bf16>) -> (!stg.tensor<[B/(en*el), A], bf16>, !stg.tensor<[B/(en*el), A], i32>)
  // CHECK: stg.dispatch %x by %j to "X.outer" "T.outer2" dropless
  %q, %m = stg.dispatch %x by %j to "X" "T" dropless
    : (!stg.tensor<[B/(en*el), D], bf16>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[X, T/(en*el), D], bf16>, !stg.tensor<[X], i64>)
  %f = dist.reshard %q : !stg.tensor<[X, T/(en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  "test.op"(%e, %f) : (!stg.tensor<[X/(en*el), T, D], bf16>, !stg.tensor<[X/(en*el), T, D], bf16>) -> ()
  stg.output
}

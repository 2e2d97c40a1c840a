// Under tensor parallelism parts of a token travel: they are gathered where the experts are, and sums are scattered before they go back.
// RUN: stagec-opt %s -p split-exchanges | filecheck %s

stg.dim "B" = "32"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "8"
dist.mesh <en = 2, el = 2, tp = 2>
stg.program "M" (%x : !stg.tensor<[B/(en*el*tp), D], bf16>, %i : !stg.tensor<[B/(en*el*tp), A], i32>, %y : !stg.tensor<[X/(en*el), T, D], bf16, partial [tp]>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[B/(en*el*tp), D], bf16>, !stg.tensor<[B/(en*el*tp), A], i32>) -> (!stg.tensor<[X, T/(tp*en*el), D], bf16>, !stg.tensor<[X], i64>)
  // CHECK: %[[DEVICE:[^ ]*]] = dist.reshard {{.*}} : !stg.tensor<[X.inner/en, T.inner/(tp*el), D], bf16> -> !stg.tensor<[X.inner/(en*el), T.inner/tp, D], bf16>
  // CHECK: %[[OWN:[^ ]*]], %{{.*}} = stg.fan_out %[[DEVICE]] to "X" "T"
  // CHECK: dist.reshard %[[OWN]] {{.*}} : !stg.tensor<[X/(en*el), T/tp, D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  %e = dist.reshard %r : !stg.tensor<[X, T/(tp*en*el), D], bf16> -> !stg.tensor<[X/(en*el), T, D], bf16>
  "test.op"(%e) : (!stg.tensor<[X/(en*el), T, D], bf16>) -> ()
  // CHECK: %[[SUM:[^ ]*]] = dist.reshard %y {{.*}} : !stg.tensor<[X/(en*el), T, D], bf16, partial [tp]> -> !stg.tensor<[X/(en*el), T/tp, D], bf16>
  // CHECK: stg.fan_in %[[SUM]] to "X.inner" "T.inner"
  %b = dist.reshard %y : !stg.tensor<[X/(en*el), T, D], bf16, partial [tp]> -> !stg.tensor<[X, T/(tp*en*el), D], bf16>
  %o = stg.combine %b by %i
    : (!stg.tensor<[X, T/(tp*en*el), D], bf16>, !stg.tensor<[B/(en*el*tp), A], i32>) -> !stg.tensor<[B/(en*el*tp), D], bf16>
  "test.op"(%o) : (!stg.tensor<[B/(en*el*tp), D], bf16>) -> ()
  stg.output
}

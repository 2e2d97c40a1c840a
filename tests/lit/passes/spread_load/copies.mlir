// Where tokens go to nodes first, copies are not as many on each device either: neither those that are sent nor those that arrive.
// RUN: stagec-opt %s -p 'spread-load{zipf="1"}' | filecheck %s

stg.dim "B" = "32"
stg.dim "X" = "8"
stg.dim "A" = "2"
stg.dim "T" = "8"
stg.dim "X.outer" = "en"
stg.dim "T.outer" = "B/en"
stg.dim "X.inner" = "el*en"
stg.dim "T.inner" = "2*B/(el*en)"
dist.mesh <en = 2, el = 2>
// CHECK: dist.expert_load "T.load" of "T" experts "X" chosen [B, A] over [en, el] among [] copies [T.outer, T.inner] groups "2" limit "1" zipf "1" seed 0
stg.program "M" (%x : !stg.tensor<[B/(en*el), D], fp8>, %s : !stg.tensor<[B/(en*el), X], bf16>) {
  %g, %i = stg.topk %s over "X" to "A" groups "2" limit "1" : (!stg.tensor<[B/(en*el), X], bf16>) -> (!stg.tensor<[B/(en*el), A], bf16>, !stg.tensor<[B/(en*el), A], i32>)
  // CHECK: stg.dispatch %x by %i to "X.outer" "T.outer.sent"
  %c, %n = stg.dispatch %x by %i to "X.outer" "T.outer" dropless
    : (!stg.tensor<[B/(en*el), D], fp8>, !stg.tensor<[B/(en*el), A], i32>) -> (!stg.tensor<[X.outer, T.outer/(el*en), D], fp8>, !stg.tensor<[X.outer], i64>)
  // CHECK: dist.all_to_all {{.*}} gather "T.outer" scatter "X.outer" over [en] load "T.outer.load" : !stg.tensor<[X.outer, T.outer.sent/(el*en), D], fp8> -> !stg.tensor<[X.outer/en, T.outer.load/el, D], fp8>
  %d = dist.all_to_all %c gather "T.outer" scatter "X.outer" over [en] : !stg.tensor<[X.outer, T.outer/(el*en), D], fp8> -> !stg.tensor<[X.outer/en, T.outer/el, D], fp8>
  // CHECK: stg.fan_out %d to "X.inner" "T.inner.sent"
  %f, %m = stg.fan_out %d to "X.inner" "T.inner" dropless : (!stg.tensor<[X.outer/en, T.outer/el, D], fp8>) -> (!stg.tensor<[X.inner/en, T.inner/el, D], fp8>, !stg.tensor<[X.inner/en], i64>)
  // CHECK: dist.all_to_all {{.*}} gather "T.inner" scatter "X.inner" over [el] load "T.inner.load" : !stg.tensor<[X.inner/en, T.inner.sent/el, D], fp8> -> !stg.tensor<[X.inner/(en*el), T.inner.load, D], fp8>
  %h = dist.all_to_all %f gather "T.inner" scatter "X.inner" over [el] : !stg.tensor<[X.inner/en, T.inner/el, D], fp8> -> !stg.tensor<[X.inner/(en*el), T.inner, D], fp8>
  %q = stg.cast %h : (!stg.tensor<[X.inner/(en*el), T.inner, D], fp8>) -> !stg.tensor<[X.inner/(en*el), T.inner, D], bf16>
  // CHECK: stg.fan_out %q to "X" "T.load" : (!stg.tensor<[X.inner/(en*el), T.inner.load, D], bf16>) -> (!stg.tensor<[X/(en*el), T.load, D], bf16>
  %e, %k = stg.fan_out %q to "X" "T" : (!stg.tensor<[X.inner/(en*el), T.inner, D], bf16>) -> (!stg.tensor<[X/(en*el), T, D], bf16>, !stg.tensor<[X/(en*el)], i64>)
  stg.output
}

// Collectives between the exchanges know the dim by its new name.
// RUN: stagec-opt %s -p 'spread-load{zipf="1"}' | filecheck %s

stg.dim "X" = "4"
stg.dim "A" = "2"
stg.dim "T" = "64"
dist.mesh <ep = 2, tp = 2>
// CHECK: dist.expert_load "T.load" of "T" experts "X" chosen [T, A] over [ep] among [tp] zipf "1" seed 0
stg.program "M" (%x : !stg.tensor<[T/(tp*ep), D], bf16>, %i : !stg.tensor<[T/(tp*ep), A], i32>) {
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[T/(tp*ep), D], bf16>, !stg.tensor<[T/(tp*ep), A], i32>) -> (!stg.tensor<[X, T/(tp*ep), D], bf16>, !stg.tensor<[X], i64>)
  %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/(tp*ep), D], bf16> -> !stg.tensor<[X/ep, T/tp, D], bf16>
  // CHECK: dist.all_gather %e dim "T.load" over [tp] : !stg.tensor<[X/ep, T.load/tp, D], bf16> -> !stg.tensor<[X/ep, T.load, D], bf16>
  %g = dist.all_gather %e dim "T" over [tp] : !stg.tensor<[X/ep, T/tp, D], bf16> -> !stg.tensor<[X/ep, T, D], bf16>
  stg.output
}

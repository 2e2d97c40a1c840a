// Layers stay rolled: the tokens of experts have a name of their own, forward and backward, also where they are saved.
// RUN: stagec-opt %s -p 'spread-load{shares="3 1 1 1"}' | filecheck %s

// CHECK:      stg.dim "T.load" = "T"
// CHECK-NEXT: stg.dim "T.load.max" = "T"
// CHECK-NEXT: dist.expert_load "T.load" of "T" experts "X" chosen [T, A] over [ep] among [edp] shares ["3 1 1 1"]
stg.dim "L" = "3"
stg.dim "X" = "4"
stg.dim "A" = "2"
stg.dim "T" = "64"
dist.mesh <edp = 2, ep = 2>
stg.program "M" (%x : !stg.tensor<[T/(edp*ep), D], bf16>, %i : !stg.tensor<[T/(edp*ep), A], i32>) {
  %w = stg.weight "w" : !stg.tensor<[X/ep, D, F], bf16>
  // CHECK: stg.repeat "L" -> (!stg.stack<"L" x !stg.tensor<[X/ep, T.load/edp, D], bf16>>) {
  %s = stg.repeat "L" carry() slice() -> (!stg.stack<"L" x !stg.tensor<[X/ep, T/edp, D], bf16>>) {
    %r, %n = stg.dispatch %x by %i to "X" "T" dropless
      : (!stg.tensor<[T/(edp*ep), D], bf16>, !stg.tensor<[T/(edp*ep), A], i32>) -> (!stg.tensor<[X, T/(edp*ep), D], bf16>, !stg.tensor<[X], i64>)
    // CHECK: %e = dist.all_to_all %r gather "T" scatter "X" over [ep] load "T.load" : {{.*}} -> !stg.tensor<[X/ep, T.load/edp, D], bf16>
    %e = dist.all_to_all %r gather "T" scatter "X" over [ep] : !stg.tensor<[X, T/(edp*ep), D], bf16> -> !stg.tensor<[X/ep, T/edp, D], bf16>
    // CHECK: %y = stg.contract {{.*}} -> !stg.tensor<[X/ep, T.load/edp, F], bf16>
    %y = stg.contract %e, %w over [D] : (!stg.tensor<[X/ep, T/edp, D], bf16>, !stg.tensor<[X/ep, D, F], bf16>) -> !stg.tensor<[X/ep, T/edp, F], bf16>
    // CHECK: %dw = stg.contract %e, %y over [T.load] : {{.*}} -> !stg.tensor<[X/ep, D, F], bf16, partial [edp]>
    %dw = stg.contract %e, %y over [T] : (!stg.tensor<[X/ep, T/edp, D], bf16>, !stg.tensor<[X/ep, T/edp, F], bf16>) -> !stg.tensor<[X/ep, D, F], bf16, partial [edp]>
    // CHECK: dist.all_to_all %e gather "X" scatter "T" over [ep] load "T.load" : {{.*}} -> !stg.tensor<[X, T/(edp*ep), D], bf16>
    %b = dist.all_to_all %e gather "X" scatter "T" over [ep] : !stg.tensor<[X/ep, T/edp, D], bf16> -> !stg.tensor<[X, T/(edp*ep), D], bf16>
    stg.yield %e : !stg.tensor<[X/ep, T/edp, D], bf16>
  }
  stg.output
}

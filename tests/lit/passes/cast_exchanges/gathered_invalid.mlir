// Where experts take their tokens from those of all devices none is sent in a dtype of its own.
// RUN: not stagec-opt %s -p 'cast-exchanges{dispatch="fp8"}' 2>&1 | filecheck %s

dist.mesh <ep = 4>
stg.program "M" (%x : !stg.tensor<[T, D], bf16>, %i : !stg.tensor<[T, A], i32>) {
  // CHECK: error[E0312]: experts take their tokens from those of all devices, so that none are sent in a dtype of their own
  // CHECK: help: leave `dispatch` and `combine` out of `precision`, or `exchange = all_gather` out of `collectives`
  %e, %n = stg.dispatch %x by %i to "X" "T" dropless
    : (!stg.tensor<[T, D], bf16>, !stg.tensor<[T, A], i32>) -> (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[X], i64>)
  stg.output
}

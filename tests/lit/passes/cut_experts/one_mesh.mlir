// A model on one mesh stays whole.
// RUN: stagec-opt %s -p cut-experts | filecheck %s

!x = !stg.tensor<[B, D], bf16>
!r = !stg.tensor<[X, T, D], bf16>
!i = !stg.tensor<[B, A], i32>
// CHECK-NOT: dist.tower
stg.program "M" (%x : !x, %i : !i) {
  %r, %c = stg.dispatch %x by %i to "X" "T" dropless : (!x, !i) -> (!r, !stg.tensor<[X], i64>)
  // CHECK: stg.combine %r
  %o = stg.combine %r by %i : (!r, !i) -> !x
  stg.output %o : !x
}

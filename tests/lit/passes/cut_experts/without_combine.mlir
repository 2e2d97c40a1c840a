// What comes back from experts is combined: nothing else reads what they make.
// RUN: stagec-opt %s -p cut-experts --verify-diagnostics | filecheck %s

!x = !stg.tensor<[B, D], bf16>
!r = !stg.tensor<[X, T, D], bf16>
!i = !stg.tensor<[B, A], i32>
dist.experts on "experts" others on "attention"
dist.pool "experts" ranks 4 to 8 of 8
// CHECK: error[E0423]: what experts make of their tokens leaves them without `combine`
stg.program "M" (%x : !x, %i : !i) {
  %r, %c = stg.dispatch %x by %i to "X" "T" dropless : (!x, !i) -> (!r, !stg.tensor<[X], i64>)
  %y = stg.unary "exp" %r : (!r) -> !r
  stg.output %y : !r
}

// Each pool casts at its own end of the way: tokens before they are copied, and back where they arrive.
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="fp8" combine="fp16"}' | filecheck %s

!x = !stg.tensor<[B, D], bf16>
!r = !stg.tensor<[X, T, D], bf16>
dist.experts on "experts" others on "attention"
stg.program "M" () {
  // CHECK: %x, %i = "test.op"
  // CHECK-NEXT: %[[CAST:.*]] = stg.cast %x {{.*}} fp8>
  // CHECK-NEXT: %r, %n = stg.dispatch %[[CAST]] by %i {{.*}} -> (!stg.tensor<[X, T, D], fp8>,
  // CHECK-NEXT: dist.tower_send "forward" 0 to "experts" %r : !stg.tensor<[X, T, D], fp8>
  %x, %i = "test.op"() : () -> (!x, !stg.tensor<[B, A], i32>)
  %r, %n = stg.dispatch %x by %i to "X" "T" dropless : (!x, !stg.tensor<[B, A], i32>) -> (!r, !stg.tensor<[X], i64>)
  dist.tower_send "forward" 0 to "experts" %r : !r
  // CHECK-NEXT: %y = dist.tower_recv "backward" 1 of "experts" : !stg.tensor<[X, T, D], fp16>
  // CHECK-NEXT: %[[BACK:.*]] = stg.cast %y {{.*}} bf16>
  // CHECK-NEXT: stg.combine %[[BACK]]
  %y = dist.tower_recv "backward" 1 of "experts" : !r
  %o = stg.combine %y by %i : (!r, !stg.tensor<[B, A], i32>) -> !x
  // Other values have their own copies: numbers of a token's experts stay what they are.
  // CHECK-NEXT: dist.tower_send "forward" 2 to "experts" %i : !stg.tensor<[B, A], i32>
  dist.tower_send "forward" 2 to "experts" %i : !stg.tensor<[B, A], i32>
  // CHECK-NEXT: %[[SUM:.*]] = stg.cast %o {{.*}} fp8>
  // CHECK-NEXT: dist.tower_send "forward" 3 to "experts" %[[SUM]] : !stg.tensor<[B, D], fp8>
  dist.tower_send "forward" 3 to "experts" %o : !x
  stg.output
}

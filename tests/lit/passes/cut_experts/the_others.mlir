// The pool of everything else has routers and weights of the sum, and none of the experts' weights; one that nobody reads is its own.
// RUN: stagec-opt %s -p cut-experts | filecheck %s

!x = !stg.tensor<[B, D], bf16>
!r = !stg.tensor<[X, T, D], bf16>
!i = !stg.tensor<[B, A], i32>
dist.experts on "experts" others on "attention"
dist.pool "attention" ranks 0 to 4 of 8
// CHECK: stg.program "M" (%x: !stg.tensor<[B, D], bf16>, %i: !stg.tensor<[B, A], i32>)
stg.program "M" (%x : !x, %i : !i) {
  // CHECK-NEXT: %n = stg.weight "n"
  // CHECK-NEXT: %idle = stg.weight "idle"
  // CHECK-NEXT: stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%n1 = %n : !stg.stack<"L" x !stg.tensor<[D], bf16>>) ->
  %n = stg.weight "n" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %w = stg.weight "w" : !stg.stack<"L" x !stg.tensor<[X, D], bf16>>
  %idle = stg.weight "idle" : !stg.tensor<[D], bf16>
  %z = stg.repeat "L" carry(%h = %x : !x) slice(%n1 = %n : !stg.stack<"L" x !stg.tensor<[D], bf16>>, %w1 = %w : !stg.stack<"L" x !stg.tensor<[X, D], bf16>>) -> (!x) {
    // CHECK-NEXT: %a = stg.mul %h, %n1
    %a = stg.mul %h, %n1 : (!x, !stg.tensor<[D], bf16>) -> !x
    // CHECK-NEXT: %r, %c = stg.dispatch %a
    %r, %c = stg.dispatch %a by %i to "X" "T" dropless : (!x, !i) -> (!r, !stg.tensor<[X], i64>)
    // CHECK-NEXT: dist.tower_send "forward" 0 to "experts" %r
    // CHECK-NEXT: %[[BACK:.*]] = dist.tower_recv "backward" 1 of "experts"
    %e = stg.unary "exp" %w1 : (!stg.tensor<[X, D], bf16>) -> !stg.tensor<[X, D], bf16>
    %y = stg.mul %r, %e : (!r, !stg.tensor<[X, D], bf16>) -> !r
    // CHECK-NEXT: %o = stg.combine %[[BACK]] by %i
    %o = stg.combine %y by %i : (!r, !i) -> !x
    // CHECK-NEXT: stg.yield %o
    stg.yield %o : !x
  }
  stg.output %z : !x
}

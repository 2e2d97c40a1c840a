// Modules that are named go with the experts: what they read comes once, whoever reads it there. What is made of weights alone is computed where it is read.
// RUN: stagec-opt %s -p cut-experts | filecheck %s

!x = !stg.tensor<[B, D], bf16>
!r = !stg.tensor<[X, T, D], bf16>
!i = !stg.tensor<[B, A], i32>
dist.experts with [Shared] on "experts" others on "attention"
dist.pool "experts" ranks 4 to 8 of 8
// CHECK: stg.program "M" () {
stg.program "M" (%x : !x, %i : !i) {
  // CHECK-NEXT: %w = stg.weight "w"
  // CHECK-NEXT: %s = stg.weight "s"
  %w = stg.weight "w" : !stg.tensor<[X, D], bf16>
  %s = stg.weight "s" : !stg.tensor<[D], bf16>
  // CHECK-NEXT: %e = stg.unary "exp" %w
  %e = stg.unary "exp" %w : (!stg.tensor<[X, D], bf16>) -> !stg.tensor<[X, D], bf16>
  %a = stg.unary "exp" %x : (!x) -> !x
  %r, %c = stg.dispatch %a by %i to "X" "T" dropless : (!x, !i) -> (!r, !stg.tensor<[X], i64>)
  // CHECK-NEXT: %[[ROUTED:.*]] = dist.tower_recv "forward" 1 of "attention" tokens "T"
  // CHECK-NEXT: %y = stg.mul %[[ROUTED]], %e
  %y = stg.mul %r, %e : (!r, !stg.tensor<[X, D], bf16>) -> !r
  // CHECK-NEXT: dist.tower_send "backward" 2 to "attention" %y
  %o = stg.combine %y by %i : (!r, !i) -> !x
  // CHECK-NEXT: %[[ALL:.*]] = dist.tower_recv "forward" 0 of "attention" {
  // CHECK-NEXT: %u = stg.mul %[[ALL]], %s
  %u = stg.mul %a, %s {scope = "Block.Shared"} : (!x, !stg.tensor<[D], bf16>) -> !x
  // CHECK-NEXT: %v = stg.mul %u, %[[ALL]]
  %v = stg.mul %u, %a {scope = "Block.Shared"} : (!x, !x) -> !x
  // CHECK-NEXT: dist.tower_send "backward" 3 to "attention" %v
  %b = stg.add %o, %v : (!x, !x) -> !x
  // CHECK-NEXT: stg.output
  stg.output %b : !x
}

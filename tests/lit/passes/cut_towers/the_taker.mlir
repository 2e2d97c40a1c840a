// The pool behind a tower takes what the tower makes, and keeps what joins it with what no tower makes: embeddings are its own.
// RUN: stagec-opt %s -p cut-towers | filecheck %s

!x = !stg.tensor<[B, D], bf16>
dist.towers ["vision" 1 ["K"], "text" 2 ["L"]]
dist.pool "text" ranks 4 to 8 of 8
// CHECK: stg.program "M" (%t: !stg.tensor<[B, D], bf16>)
stg.program "M" (%i : !x, %t : !x) {
  // CHECK-NEXT: %e = stg.weight "e"
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %e = stg.weight "e" : !stg.tensor<[D], bf16>
  %x = stg.mul %i, %w : (!x, !stg.tensor<[D], bf16>) -> !x
  %v = stg.repeat "K" carry(%h = %x : !x) -> (!x) {
    %n = stg.unary "exp" %h : (!x) -> !x
    stg.yield %n : !x
  }
  // CHECK-NEXT: %[[EMBEDDED:.*]] = stg.mul %t, %e
  %j = stg.mul %t, %e : (!x, !stg.tensor<[D], bf16>) -> !x
  // CHECK-NEXT: %[[TAKEN:.*]] = dist.tower_recv "forward" 0 of "vision" trained
  // CHECK-NEXT: %[[BOTH:.*]] = stg.add %[[EMBEDDED]], %[[TAKEN]]
  %y = stg.add %j, %v : (!x, !x) -> !x
  // CHECK-NEXT: stg.repeat "L" carry({{.*}} = %[[BOTH]] :
  %z = stg.repeat "L" carry(%g = %y : !x) -> (!x) {
    %m = stg.unary "exp" %g : (!x) -> !x
    stg.yield %m : !x
  }
  // CHECK: stg.output %z
  stg.output %z : !x
}

// Parts of one value are stored once, behind the last reader of any, and are the same parts of what is loaded.
// RUN: stagec-opt %s -p 'offload-activations{what="all"}' | filecheck %s

!t = !stg.tensor<[B, D], bf16>
!a = !stg.tensor<[B, N], bf16>
!b = !stg.tensor<[B, R], bf16>
dist.mesh <dp = 1>
stg.program "M" (%x : !t) {
  %y, %as, %bs = stg.repeat "L" carry(%h = %x : !t) -> (!t, !stg.stack<"L" x !a>, !stg.stack<"L" x !b>) {
    // CHECK: %[[E:.*]] = stg.unary "exp"
    %e = stg.unary "exp" %h : (!t) -> !t
    %a, %b = stg.split %e over "D" to [N, R] : (!t) -> (!a, !b)
    // CHECK: stg.concat
    // CHECK-NEXT: dist.store(%[[E]])
    %n = stg.concat %b, %a over [R, N] to "D" : (!b, !a) -> !t
    stg.yield %n, %a, %b : !t, !a, !b
  }
  // CHECK: stg.repeat "L" reverse
  %dx = stg.repeat "L" reverse carry(%dy = %y : !t) slice(%sa = %as : !stg.stack<"L" x !a>, %sb = %bs : !stg.stack<"L" x !b>) -> (!t) attributes {phase = "bwd"} {
    // CHECK: %[[LOADED:.*]] = dist.load
    // CHECK-DAG: %[[A:.*]], %{{.*}} = stg.split %[[LOADED]]
    // CHECK-DAG: %{{.*}}, %[[B:.*]] = stg.split %[[LOADED]]
    // CHECK: stg.concat %[[A]], %[[B]]
    %d = stg.concat %sa, %sb over [N, R] to "D" {phase = "bwd"} : (!a, !b) -> !t
    %dm = stg.mul %dy, %d {phase = "bwd"} : (!t, !t) -> !t
    stg.yield %dm : !t
  }
  stg.output
}

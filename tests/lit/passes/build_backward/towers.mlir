// The gradient of what another pool makes goes back to it, and that of what another pool reads comes from there.
// RUN: stagec-opt %s -p build-backward | filecheck %s

!x = !stg.tensor<[B, D], bf16>
// A tower that takes from one pool and hands on to the next.
stg.program "M" () {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %v = dist.tower_recv "forward" 0 of "vision" trained : !x
  %y = stg.mul %v, %w : (!x, !stg.tensor<[D], bf16>) -> !x
  dist.tower_send "forward" 1 to "text" %y : !x
  // CHECK:      dist.tower_send "forward" 1
  // CHECK-NEXT: %[[DY:.*]] = dist.tower_recv "backward" 1 of "text"
  // CHECK:      %[[DV:.*]] = stg.mul %[[DY]], %w
  // CHECK:      dist.tower_send "backward" 0 to "vision" %[[DV]]
  // CHECK:      stg.output weights %w
  stg.output
}

// What depends on no weight that is trained is taken without a gradient that goes back.
// RUN: stagec-opt %s -p cut-towers | filecheck %s

!x = !stg.tensor<[B, D], bf16>
dist.towers ["vision" 1 ["K"], "text" 2 ["L"]]
dist.pool "text" ranks 4 to 8 of 8
stg.program "M" (%i : !x) {
  %w = stg.weight "w" frozen : !stg.tensor<[D], bf16>
  %x = stg.mul %i, %w : (!x, !stg.tensor<[D], bf16>) -> !x
  %v = stg.repeat "K" carry(%h = %x : !x) -> (!x) {
    stg.yield %h : !x
  }
  // CHECK: dist.tower_recv "forward" 0 of "vision" {
  %z = stg.repeat "L" carry(%g = %v : !x) -> (!x) {
    stg.yield %g : !x
  }
  stg.output %z : !x
}

// A unit that nothing trains is gathered behind the backward pass of the layers, all the same: theirs gathers it ahead.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" units="Table","Block" gather="bf16"}' | filecheck %s
!t = !stg.tensor<[B, D], bf16>
!w = !stg.tensor<[D], bf16>
!ws = !stg.stack<"L" x !stg.tensor<[D], bf16>>
stg.program "M" (%x : !t) {
  %table = stg.weight "Table.w" : !w
  %ws = stg.weight "Block.w" : !ws
  stg.accumulate over "mb" {
    // CHECK:      dist.unshard(%table)
    // CHECK:      stg.repeat "L"
    // CHECK:      stg.repeat "L" reverse
    // CHECK:      dist.unshard(%table) over [dp] in "bf16" {phase = "bwd", prefetch = 1 : i64
    // CHECK-NEXT: stg.yield
    %y = stg.add %x, %table : (!t, !w) -> !t
    %z = stg.repeat "L" carry(%h = %y : !t) slice(%v = %ws : !ws) -> (!t) {
      %n = stg.mul %h, %v : (!t, !w) -> !t
      stg.yield %n : !t
    }
    %dy = stg.repeat "L" reverse carry(%dh = %z : !t) slice(%v = %ws : !ws) -> (!t) attributes {phase = "bwd"} {
      %n = stg.mul %dh, %v {phase = "bwd"} : (!t, !w) -> !t
      stg.yield %n : !t
    }
    stg.yield
  }
  stg.output
}

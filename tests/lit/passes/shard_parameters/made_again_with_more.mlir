// A unit that is made again as part of more begins its backward pass behind that; one that is made again by itself does not.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" units="Block","Experts"}' | filecheck %s

!t = !stg.tensor<[D], fp32>
!s = !stg.stack<"L" x !stg.tensor<[D], fp32>>
stg.program "M" (%x : !t) {
  %w = stg.weight "Block.w" : !s
  %e = stg.weight "Block.Experts.w" : !s
  stg.accumulate over "mb" {
    // CHECK:      stg.repeat "L" reverse
    // CHECK-NEXT: dist.unshard
    // CHECK-NEXT: {phase = "recompute", scope = "Block"}
    // CHECK-NEXT: dist.unshard
    // CHECK-NEXT: {phase = "recompute", scope = "Block.Experts"}
    // CHECK-NEXT: {phase = "bwd", scope = "Block"}
    // CHECK-NEXT: {phase = "bwd", scope = "Block.Experts", begins_unit = 0 : i64}
    // CHECK-NEXT: {phase = "bwd", scope = "Block", follows_unit}
    %dx = stg.repeat "L" reverse carry(%dh = %x : !t) slice(%v = %w : !s, %u = %e : !s) -> (!t) attributes {phase = "bwd"} {
      %a = stg.mul %dh, %v {phase = "recompute", scope = "Block"} : (!t, !t) -> !t
      %b = stg.mul %a, %u {phase = "recompute", scope = "Block.Experts"} : (!t, !t) -> !t
      %c = stg.add %dh, %b {phase = "bwd", scope = "Block"} : (!t, !t) -> !t
      %d = stg.mul %c, %u {phase = "bwd", scope = "Block.Experts"} : (!t, !t) -> !t
      %f = stg.mul %d, %v {phase = "bwd", scope = "Block"} : (!t, !t) -> !t
      stg.yield %f : !t
    }
    stg.yield
  }
  stg.output
}

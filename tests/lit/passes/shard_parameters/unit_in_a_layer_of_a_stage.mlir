// A stage gathers a unit once, where it begins: within the pass of the unit around it, if there is one.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" units="Block","Experts" reshard=false once_per_step=true at_first_use=true}' | filecheck %s

!t = !stg.tensor<[D], fp32>
!s = !stg.stack<"L" x !stg.tensor<[D], fp32>>
stg.program "M" (%x : !t) {
  %w = stg.weight "Block.w" : !s
  %e = stg.weight "Block.Experts.w" : !s
  stg.accumulate over "mb" {
    // CHECK:      stg.repeat "L" carry(%h
    // CHECK-NEXT: stg.mul %h, %v {scope = "Block"}
    // CHECK-NEXT: stg.mul %a, %u {scope = "Block.Experts", begins_unit = 0 : i64}
    // CHECK-NEXT: stg.add %a, %b {scope = "Block"}
    %y = stg.repeat "L" carry(%h = %x : !t) slice(%v = %w : !s, %u = %e : !s) -> (!t) {
      %a = stg.mul %h, %v {scope = "Block"} : (!t, !t) -> !t
      %b = stg.mul %a, %u {scope = "Block.Experts"} : (!t, !t) -> !t
      %c = stg.add %a, %b {scope = "Block"} : (!t, !t) -> !t
      stg.yield %c : !t
    }
    %dy = stg.mul %y, %y {phase = "bwd"} : (!t, !t) -> !t
    stg.yield
  }
  stg.output
}

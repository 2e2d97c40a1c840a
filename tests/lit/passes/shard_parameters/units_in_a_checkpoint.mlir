// Of units within what is made again at once, the one whose gradient comes first is gathered before that.
// The others are gathered as they are made again, unless the backward pass of the unit behind them began before.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" units="Attention","Mid","Mlp"}' | filecheck %s

!t = !stg.tensor<[D], fp32>
!s = !stg.stack<"L" x !stg.tensor<[D], fp32>>
stg.program "M" (%x : !t) {
  %w = stg.weight "Block.Attention.w" : !s
  %n = stg.weight "Block.Mid.w" : !s
  %e = stg.weight "Block.Mlp.w" : !s
  stg.accumulate over "mb" {
    // CHECK:      stg.repeat "L" reverse
    // CHECK-NEXT: dist.unshard(%u) over [dp] in "fp32" {phase = "bwd", prefetch = 1 : i64, made_by
    // CHECK-NEXT: dist.unshard(%v) over [dp] in "fp32" {phase = "recompute", prefetch = 1 : i64, hook = 1 : i64
    // CHECK-NEXT: {phase = "recompute", scope = "Block.Attention"}
    // CHECK-NEXT: dist.unshard(%k) over [dp] in "fp32" {phase = "bwd", prefetch = 1 : i64, hook = 0 : i64
    // CHECK-NEXT: {phase = "recompute", scope = "Block.Mid"}
    // CHECK-NEXT: {phase = "recompute", scope = "Block.Mlp"}
    // CHECK-NEXT: {phase = "bwd", scope = "Block.Mlp"}
    // CHECK-NEXT: {phase = "bwd", scope = "Block.Mid", begins_unit = 0 : i64
    // CHECK-NEXT: {phase = "bwd", scope = "Block.Attention", begins_unit = 1 : i64
    %dx = stg.repeat "L" reverse carry(%dh = %x : !t) slice(%v = %w : !s, %k = %n : !s, %u = %e : !s) -> (!t) attributes {phase = "bwd"} {
      %a = stg.mul %dh, %v {phase = "recompute", scope = "Block.Attention"} : (!t, !t) -> !t
      %b = stg.mul %a, %k {phase = "recompute", scope = "Block.Mid"} : (!t, !t) -> !t
      %c = stg.mul %b, %u {phase = "recompute", scope = "Block.Mlp"} : (!t, !t) -> !t
      %d = stg.mul %c, %u {phase = "bwd", scope = "Block.Mlp"} : (!t, !t) -> !t
      %f = stg.mul %d, %k {phase = "bwd", scope = "Block.Mid"} : (!t, !t) -> !t
      %g = stg.mul %f, %v {phase = "bwd", scope = "Block.Attention"} : (!t, !t) -> !t
      stg.yield %g : !t
    }
    stg.yield
  }
  stg.output
}

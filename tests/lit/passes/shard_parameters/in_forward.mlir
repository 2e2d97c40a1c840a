// Parameters are gathered as a step begins, each layer's together, and not after the update; they stay in their own dtype.
// RUN: stagec-opt %s -p 'shard-parameters{level=1 axes="dp" gather="fp8" in_forward=true at_first_use=true}' | filecheck %s
!w = !stg.tensor<[D], bf16>
!g = !dist.shard<!stg.tensor<[D], fp32> over [dp]>
stg.program "M" (%x : !w) {
  %e = stg.weight "e" : !w
  %ws = stg.weight "w" : !stg.stack<"4" x !w>
  // CHECK:      %[[TAKEN:[^ ]*]] = dist.take_shard(%e) over [dp] in "bf16" {phase = "fwd"
  // CHECK-NEXT: %[[TAKENS:[^ ]*]] = dist.take_shard(%ws) over [dp] in "bf16" {phase = "fwd"
  // CHECK-NEXT: %[[WHOLE:[^ ]*]] = dist.unshard(%[[TAKEN]]) over [dp] in "fp8" {phase = "fwd", lag = 1 : i64, issued = "with_unit"
  // CHECK-SAME: -> !stg.tensor<[D], bf16>
  // CHECK-NEXT: %[[WHOLES:[^ ]*]] = stg.repeat "4" slice(%{{[^ ]*}} = %[[TAKENS]]
  // CHECK:      dist.unshard
  // CHECK:      stg.accumulate
  // CHECK-NEXT: stg.add %x, %[[WHOLE]]
  // CHECK-NEXT: stg.repeat "4" {{.*}}slice(%{{[^ ]*}} = %[[WHOLES]]
  stg.accumulate over "mb" {
    %y = stg.add %x, %e : (!w, !w) -> !w
    %z = stg.repeat "4" carry(%h = %y : !w) slice(%w = %ws : !stg.stack<"4" x !w>) -> (!w) {
      %a = stg.add %h, %w : (!w, !w) -> !w
      stg.yield %a : !w
    }
    stg.yield
  }
  %g, %gs = "test.op"() : () -> (!g, !stg.stack<"4" x !g>)
  // CHECK:      stg.optimizer_step {{.*}}(%[[TAKEN]], %[[TAKENS]])
  // CHECK-NOT:  dist.unshard
  stg.optimizer_step "adamw" states "fp32" master "fp32" (%e, %ws) from (%g, %gs) {phase = "optim"}
    : !w, !stg.stack<"4" x !w> from !g, !stg.stack<"4" x !g>
  stg.output
}

// Two contexts over one sequence: heads are split over one axis, and keys go round the other.
// RUN: stagec-opt %s -p propagate-shardings | stagec-opt - | filecheck %s

// CHECK: stg.attention {{.*}} {placement = #dist.placement<[S/r, H/u, key.S/r]>} : (!stg.tensor<[S/(r*u), H, E], bf16>
dist.mesh <r = 4, u = 2>
dist.rule [S] over [r, u]
dist.context "ring" over [r] rotate "all_to_all" balance "head_tail"
dist.context "ulysses" over [u] rotate "all_to_all" balance "head_tail"
stg.program "M" (%x : !stg.tensor<[S, H, E], bf16>) {
  %q = stg.unary "silu" %x : (!stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  %o, %lse = stg.attention %q, %q, %q count "causal" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)
  stg.output %o : !stg.tensor<[S, H, E], bf16>
}

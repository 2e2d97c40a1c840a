// In a ring an axis splits two indices of attention: the sequence of the queries and that of the keys.
// RUN: stagec-opt %s -p propagate-shardings | stagec-opt - | filecheck %s

// CHECK: stg.attention {{.*}} {placement = #dist.placement<[S/cp, key.S/cp]>} : (!stg.tensor<[S/cp, H, E], bf16>, {{.*}} -> (!stg.tensor<[S/cp, H, E], bf16>
dist.mesh <cp = 4>
dist.rule [S] over [cp]
dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
stg.program "M" (%x : !stg.tensor<[S, H, E], bf16>) {
  %q = stg.unary "silu" %x : (!stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  %o, %lse = stg.attention %q, %q, %q count "causal" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)
  stg.output %o : !stg.tensor<[S, H, E], bf16>
}

// Under `ulysses` the axis splits heads within attention, as the most minor one; values keep their sharding.
// RUN: stagec-opt %s -p propagate-shardings | stagec-opt - | filecheck %s

// CHECK: stg.attention {{.*}} {placement = #dist.placement<[H/(tp*cp)]>} : (!stg.tensor<[S/cp, H/tp, E], bf16>, {{.*}} -> (!stg.tensor<[S/cp, H/tp, E], bf16>
dist.mesh <cp = 4, tp = 2>
dist.rule [H] over [tp]
dist.rule [S] over [cp]
dist.context "ulysses" over [cp] rotate "all_to_all" balance "head_tail"
stg.program "M" (%x : !stg.tensor<[S, H, E], bf16>) {
  %q = stg.unary "silu" %x : (!stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  %o, %lse = stg.attention %q, %q, %q count "causal" : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>) -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)
  stg.output %o : !stg.tensor<[S, H, E], bf16>
}

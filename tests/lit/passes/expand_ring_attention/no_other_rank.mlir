// A ring of one rank has nothing to hand on.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK-NOT: dist.rotate
// CHECK:     %o, %lse = stg.attention %q, %k, %v causal count "causal" :
// CHECK-NOT: dist.rotate
dist.mesh <cp = 1>
dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %v causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

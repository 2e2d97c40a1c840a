// Without a mask every step is a whole block, and no rank skips any.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      stg.attention %q, %k, %v count "causal" pairs "S**2/cp**2"
// CHECK:      stg.repeat "cp - 2"
// CHECK:        stg.attention {{.*}} pairs "S**2/cp**2"
// CHECK:      stg.attention {{.*}} pairs "S**2/cp**2"
// CHECK-NOT:  cp.index
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "all_to_all" balance "none"
%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %v count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

// Without balance a rank skips the blocks of later ranks, which pass it all the same: what it does depends on its index.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      dist.rotate(%k, %v) over [cp]
// CHECK-NEXT: stg.attention %q, %k, %v causal count "causal" pairs "S**2/(2*cp**2)"
// CHECK:      stg.repeat "min(cp - 2, cp.index)"
// CHECK-NEXT:   dist.rotate
// CHECK-NEXT:   stg.attention {{.*}} pairs "S**2/cp**2"
// CHECK-NEXT:   stg.merge_attention
// CHECK:      stg.repeat "cp - min(cp - 2, cp.index) - 2"
// CHECK-NEXT:   dist.rotate
// CHECK-NEXT:   stg.yield
// CHECK:      stg.repeat "cp.index - min(cp - 2, cp.index)"
// CHECK-NEXT:   stg.attention
// CHECK-NEXT:   stg.merge_attention
// CHECK-NEXT:   stg.yield
// CHECK:      stg.repeat "min(1, cp - cp.index - 1)"
// CHECK-NEXT:   dist.wait
// CHECK-NEXT:   stg.yield
// CHECK-NOT:  dist.rotate
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "all_to_all" balance "none"
%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %v causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

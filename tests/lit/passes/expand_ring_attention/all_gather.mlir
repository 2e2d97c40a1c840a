// By all-gather the blocks of all others come at once; the state alone goes from step to step.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      %[[KS:.*]], %[[VS:.*]] = dist.gather_blocks(%k, %v) over [cp]
// CHECK-NEXT: stg.attention %q, %k, %v
// CHECK:      stg.repeat "cp - 1" carry({{.*}}) slice(%[[K:.*]] = %[[KS]] : {{.*}}, %[[V:.*]] = %[[VS]] : {{.*}})
// CHECK-NEXT:   stg.attention %q, %[[K]], %[[V]]
// CHECK-NEXT:   stg.merge_attention
// CHECK-NEXT:   stg.yield
// CHECK-NOT:  dist.
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "all_gather" balance "head_tail"
%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %v causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

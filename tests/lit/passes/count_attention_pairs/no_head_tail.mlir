// Head-tail chunks give every rank the same: what the shapes say already.
// RUN: stagec-opt %s -p count-attention-pairs | filecheck %s

// CHECK-NOT: pairs
dist.mesh <cp = 4>
dist.context "all_gather" over [cp] rotate "send_recv" balance "head_tail"
%q, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

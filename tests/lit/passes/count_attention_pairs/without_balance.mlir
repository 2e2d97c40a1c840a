// A rank's queries see the keys of all ranks before it, and half of its own.
// RUN: stagec-opt %s -p count-attention-pairs | filecheck %s

// CHECK: stg.attention %q, %k, %k causal count "causal" pairs "S**2*cp.index/cp**2 + S**2/(2*cp**2)"
dist.mesh <cp = 4>
dist.context "all_gather" over [cp] rotate "send_recv" balance "none"
%q, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

// A window is shorter for the queries at the very start, in whichever chunk they are.
// RUN: stagec-opt %s -p count-attention-pairs | filecheck %s

// CHECK: stg.attention %q, %k, %k causal count "causal" window "W" pairs "{{.*min\(S\*cp.index/\(2\*cp\), W\).*}}"
dist.mesh <cp = 4>
dist.context "all_gather" over [cp] rotate "send_recv" balance "head_tail"
%q, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal" window "W"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

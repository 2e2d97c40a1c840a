// Of documents of 16 and 48 tokens each rank has what its chunks hold: the first has the first document and the end of the second, 128 + 640 pairs.
// RUN: stagec-opt %s -p 'count-attention-pairs{sequence="S" lengths=16,48}' | filecheck %s

// CHECK: stg.attention %q, %k, %k causal count "causal" pairs "512*max(-max(-cp.index + 1, cp.index - 1) + 1, 0) + 768*max(-max(-cp.index, cp.index) + 1, 0)"
stg.dim "S" = "64"
dist.mesh <cp = 2>
dist.context "all_gather" over [cp] rotate "send_recv" balance "head_tail"
%q, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

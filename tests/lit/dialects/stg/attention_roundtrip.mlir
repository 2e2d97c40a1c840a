// Fused attention: grouped heads split alike, mask, window and chunks are options, the log-sum-exp is kept.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>)

// CHECK: %o, %lse = stg.attention %q, %k, %v causal count "causal" window "W" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)
%o, %lse = stg.attention %q, %k, %v causal count "causal" window "W"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: %p, %l = stg.attention %q, %k, %v count "full" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)
%p, %l = stg.attention %q, %k, %v count "full"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: stg.attention %q, %k, %v causal count "causal" chunk "W" :
%y, %z = stg.attention %q, %k, %v causal count "causal" chunk "W"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: stg.attention %q, %k, %v causal count "causal" softcap "50" :
%s, %m = stg.attention %q, %k, %v causal count "causal" softcap "50"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: stg.attention %q, %k, %v with %sink causal count "causal" :
%sink = "test.op"() : () -> !stg.tensor<[H/tp], bf16>
%u, %n = stg.attention %q, %k, %v with %sink causal count "causal"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, E], bf16>, !stg.tensor<[B/dp, S, K/tp, G], bf16>, !stg.tensor<[H/tp], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, G], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: stg.attention %q, %keys, %keys with %sink, %bias causal count "causal" scale "1/3" alibi :
%keys, %bias = "test.op"() : () -> (!stg.tensor<[B/dp, T, H/tp, E], bf16>, !stg.tensor<[S, T, H/tp], bf16>)
%aa, %ab = stg.attention %q, %keys, %keys with %sink, %bias causal count "causal" scale "1/3" alibi
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, T, H/tp, E], bf16>, !stg.tensor<[B/dp, T, H/tp, E], bf16>, !stg.tensor<[H/tp], bf16>, !stg.tensor<[S, T, H/tp], bf16>) -> (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, S, H/tp], fp32>)

// CHECK: stg.attention %{{.*}}, %{{.*}}, %{{.*}} causal count "causal" copies [r] :
%c, %d = "test.op"() : () -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>)
%w, %x = stg.attention %c, %d, %d causal count "causal" copies [r]
  : (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>, !stg.tensor<[B, S, K/kv, E], bf16>) -> (!stg.tensor<[B, S, H/(kv*r), E], bf16>, !stg.tensor<[B, S, H/(kv*r)], fp32>)

// A result for each part of the keys, each on the rank that has the part.
// CHECK: %part, %of_part = stg.attention %q, %mine, %mine causal count "causal" pairs "ceildiv(T - dcp.index, dcp)" spread [dcp] :
%mine = "test.op"() : () -> !stg.tensor<[B/dp, T/dcp, K/tp, E], bf16>
%part, %of_part = stg.attention %q, %mine, %mine causal count "causal" pairs "ceildiv(T - dcp.index, dcp)" spread [dcp]
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>, !stg.tensor<[B/dp, T/dcp, K/tp, E], bf16>, !stg.tensor<[B/dp, T/dcp, K/tp, E], bf16>) -> (!stg.tensor<[dcp.parts/dcp, B/dp, S, H/tp, E], bf16>, !stg.tensor<[dcp.parts/dcp, B/dp, S, H/tp], fp32>)

// Where all of a masked product counts, all ranks do the same.
// RUN: stagec-opt %s -p count-attention-pairs | filecheck %s

// CHECK-NOT: pairs
dist.mesh <cp = 4>
dist.context "all_gather" over [cp] rotate "send_recv" balance "none"
%q, %k = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %k causal count "full"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>, !stg.tensor<[B, S, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

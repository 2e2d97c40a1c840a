// Fused attention is run again for its log-sum-exp; its result, which the projection reads, is kept.
// RUN: stagec-opt %s -p 'recompute-activations{what="attention" modules="A"}' | filecheck %s

stg.program "M" (%q : !stg.tensor<[S, H, E], bf16>, %dy : !stg.tensor<[S, H, E], bf16>) {
  // CHECK: %[[O:[^ ]*]], %{{.*}} = stg.attention %q, %q, %q
  %o, %lse = stg.attention %q, %q, %q count "full" {scope = "A"}
    : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>)
    -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)
  %y = stg.unary "exp" %o : (!stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  // CHECK: %{{.*}}, %[[LSE:[^ ]*]] = stg.attention %q, %q, %q {{.*}}phase = "recompute"
  // CHECK-NEXT: stg.attention_grad %dy, %q, %q, %q, %[[O]], %[[LSE]]
  %dq, %dk, %dv = stg.attention_grad %dy, %q, %q, %q, %o, %lse count "full" {phase = "bwd"}
    : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>,
       !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H], fp32>)
    -> (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>, !stg.tensor<[S, H, E], bf16>)
  stg.output
}

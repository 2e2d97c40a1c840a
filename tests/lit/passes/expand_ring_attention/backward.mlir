// The gradients of a block's keys and values follow the block, in fp32, until they are home.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      dist.rotate(%k, %v) over [cp] {{.*}} bf16>)
// CHECK-NEXT: stg.attention_grad %dy, %q, %k, %v, %o, %lse causal count "full" pairs "S**2/cp**2"
// CHECK-COUNT-3: stg.cast
// CHECK-NEXT: dist.rotate({{.*}} fp32>)
// CHECK-NEXT: stg.repeat "cp - 2"
// CHECK-NEXT:   dist.rotate({{.*}} bf16>)
// CHECK-NEXT:   stg.attention_grad {{.*}} pairs "S**2/(2*cp**2)"
// CHECK-COUNT-3: stg.add
// CHECK-NEXT:   dist.rotate({{.*}} fp32>)
// CHECK-NEXT:   stg.yield
// CHECK-NEXT: }
// CHECK-NEXT: stg.attention_grad
// CHECK-COUNT-3: stg.add
// CHECK-NEXT: dist.rotate({{.*}} fp32>)
// CHECK-NOT:  dist.rotate
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
%dy, %q, %k, %v, %o = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%lse = "test.op"() : () -> !stg.tensor<[B, S/cp, H], fp32>
%dq, %dk, %dv = stg.attention_grad %dy, %q, %k, %v, %o, %lse causal count "full"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
"test.op"(%dq, %dk, %dv) : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> ()

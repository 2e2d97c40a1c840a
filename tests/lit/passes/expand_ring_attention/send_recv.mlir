// By send and receive: to the next device, from the one before, both before the block is computed with.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      dist.send(%k, %v) to 1 over [cp] channel 0
// CHECK-NEXT: %[[K1:.*]], %[[V1:.*]] = dist.recv from -1 over [cp] channel 0
// CHECK-NEXT: stg.attention_grad %dy, %q, %k, %v
// CHECK:      dist.send({{.*}}) to 1 over [cp] channel 1
// CHECK-NEXT: dist.recv from -1 over [cp] channel 1
// CHECK-NEXT: stg.repeat "cp - 2" carry(%[[K:.*]] = %[[K1]] : {{.*}}, %[[V:.*]] = %[[V1]] :
// CHECK-NEXT:   dist.send(%[[K]], %[[V]]) to 1 over [cp] channel 0
// CHECK-NEXT:   dist.recv from -1 over [cp] channel 0
// CHECK-NEXT:   stg.attention_grad %dy, %q, %[[K]], %[[V]]
// CHECK-NOT:  dist.rotate
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "send_recv" balance "head_tail"
%dy, %q, %k, %v, %o = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%lse = "test.op"() : () -> !stg.tensor<[B, S/cp, H], fp32>
%dq, %dk, %dv = stg.attention_grad %dy, %q, %k, %v, %o, %lse causal count "causal"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
"test.op"(%dq, %dk, %dv) : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> ()

// Each step asks for the next block before it computes with its own; the last one asks for nothing.
// RUN: stagec-opt %s -p expand-ring-attention | filecheck %s

// CHECK:      %[[K1:.*]], %[[V1:.*]] = dist.rotate(%k, %v) over [cp]
// CHECK-NEXT: stg.attention %q, %k, %v causal count "full" pairs "S**2/cp**2"
// CHECK:      stg.repeat "cp - 2" carry(%[[K:.*]] = %[[K1]] : {{.*}}, %[[V:.*]] = %[[V1]] : {{.*}}, %[[O:.*]] = %{{.*}} : {{.*}}, %[[L:.*]] = %{{.*}} : {{.*}}) {{.*}} attributes {steps,
// CHECK-NEXT:   %[[KN:.*]], %[[VN:.*]] = dist.rotate(%[[K]], %[[V]]) over [cp]
// CHECK-NEXT:   %[[BO:.*]], %[[BL:.*]] = stg.attention %q, %[[K]], %[[V]] causal count "full" pairs "S**2/(2*cp**2)"
// CHECK-NEXT:   stg.merge_attention %[[O]], %[[L]] and %[[BO]], %[[BL]]
// CHECK-NEXT:   stg.yield %[[KN]], %[[VN]]
// CHECK-NEXT: }
// CHECK-NEXT: stg.attention
// CHECK-NEXT: stg.merge_attention
// CHECK-NEXT: stg.cast
// CHECK-NOT:  dist.rotate
dist.mesh <cp = 4>
dist.context "ring" over [cp] rotate "all_to_all" balance "head_tail"
%q, %k, %v = "test.op"() : () -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>)
%o, %lse = stg.attention %q, %k, %v causal count "full"
  : (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H, E], bf16>) -> (!stg.tensor<[B, S/cp, H, E], bf16>, !stg.tensor<[B, S/cp, H], fp32>)
"test.op"(%o) : (!stg.tensor<[B, S/cp, H, E], bf16>) -> ()

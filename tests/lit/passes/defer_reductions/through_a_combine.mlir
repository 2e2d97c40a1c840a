// Terms of experts that are cut are combined, and added to others, before they are reduced: one all-reduce of the tokens.
// RUN: stagec-opt %s -p defer-reductions | filecheck %s

%g, %i = "test.op"() : () -> (!stg.tensor<[B, A], bf16>, !stg.tensor<[B, A], i32>)
%e, %s = "test.op"() : () -> (!stg.tensor<[X, T, D], bf16, partial [tp]>, !stg.tensor<[B, D], bf16, partial [tp]>)
%y = dist.reshard %e : !stg.tensor<[X, T, D], bf16, partial [tp]> -> !stg.tensor<[X, T, D], bf16>
%t = dist.reshard %s : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
// CHECK:      %[[TERM:.*]] = stg.combine %e by %i weights %g {{.*}} -> !stg.tensor<[B, D], bf16, partial [tp]>
// CHECK-NEXT: %[[SUM:.*]] = stg.add %s, %[[TERM]]
// CHECK-NEXT: %[[ONCE:.*]] = dist.reshard %[[SUM]] {{.*}} -> !stg.tensor<[B, D], bf16>
// CHECK-NEXT: "test.op"(%[[ONCE]])
%o = stg.combine %y by %i weights %g : (!stg.tensor<[X, T, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, D], bf16>
%z = stg.add %o, %t : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%z) : (!stg.tensor<[B, D], bf16>) -> ()

// Experts over `ep` make terms too: both axes at once.
%e2 = "test.op"() : () -> !stg.tensor<[X/ep, T, D], bf16, partial [tp]>
%y2 = dist.reshard %e2 : !stg.tensor<[X/ep, T, D], bf16, partial [tp]> -> !stg.tensor<[X/ep, T, D], bf16>
// CHECK:      %[[TERM2:.*]] = stg.combine %e2 {{.*}} -> !stg.tensor<[B, D], bf16, partial [ep, tp]>
// CHECK-NEXT: %[[ONCE2:.*]] = dist.reshard %[[TERM2]] {{.*}} -> !stg.tensor<[B, D], bf16>
// CHECK-NEXT: "test.op"(%[[ONCE2]])
%o2 = stg.combine %y2 by %i weights %g : (!stg.tensor<[X/ep, T, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, D], bf16, partial [ep]>
%z2 = dist.reshard %o2 : !stg.tensor<[B, D], bf16, partial [ep]> -> !stg.tensor<[B, D], bf16>
"test.op"(%z2) : (!stg.tensor<[B, D], bf16>) -> ()

// What another op reads whole is reduced as it was.
%e3 = "test.op"() : () -> !stg.tensor<[X, T, D], bf16, partial [tp]>
// CHECK: %[[WHOLE:.*]] = dist.reshard %e3
// CHECK: stg.combine %[[WHOLE]]
%y3 = dist.reshard %e3 : !stg.tensor<[X, T, D], bf16, partial [tp]> -> !stg.tensor<[X, T, D], bf16>
%o3 = stg.combine %y3 by %i weights %g : (!stg.tensor<[X, T, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, A], bf16>) -> !stg.tensor<[B, D], bf16>
"test.op"(%o3, %y3) : (!stg.tensor<[B, D], bf16>, !stg.tensor<[X, T, D], bf16>) -> ()

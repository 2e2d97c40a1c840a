// What brings tokens to experts, and back, is for expert parallelism: a plan's `overlap { ep = ... }` is about it. Other all-to-alls are not.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x, %i, %y = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>, !stg.tensor<[X/ep, C, D], bf16>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
// CHECK: dist.all_to_all %r {{.*}} {purpose = "ep"
%e = dist.reshard %r : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>
// CHECK: dist.all_to_all %y {{.*}} {purpose = "ep"
%b = dist.reshard %y : !stg.tensor<[X/ep, C, D], bf16> -> !stg.tensor<[X, C/ep, D], bf16>
%o = stg.combine %b by %i : (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], bf16>
// CHECK: dist.all_to_all %e
// CHECK-NOT: purpose
%z = dist.reshard %e : !stg.tensor<[X/ep, C, D], bf16> -> !stg.tensor<[X, C, D/ep], bf16>
"test.op"(%z, %o) : (!stg.tensor<[X, C, D/ep], bf16>, !stg.tensor<[B/ep, D], bf16>) -> ()

// Tokens that have the dtype are not cast, and other exchanges are none of this.
// RUN: stagec-opt %s -p 'cast-exchanges{dispatch="bf16" combine="bf16"}' | filecheck %s

%x, %i, %z = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>, !stg.tensor<[S/ep, H], fp32>)
// CHECK-NOT: stg.cast
%r, %n = stg.dispatch %x by %i to "X" "C" dropless
  : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
%e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>
%h = dist.all_to_all %z gather "S" scatter "H" over [ep] : !stg.tensor<[S/ep, H], fp32> -> !stg.tensor<[S, H/ep], fp32>

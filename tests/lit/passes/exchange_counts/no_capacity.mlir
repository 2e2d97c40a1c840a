// With a capacity sizes are fixed: there is nothing to tell.
// RUN: stagec-opt %s -p exchange-counts | filecheck %s

// CHECK-NOT: dist.exchange_counts
%x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C"
  : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
%e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>

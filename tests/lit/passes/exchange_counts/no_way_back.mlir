// The way back knows the sizes from the way there.
// RUN: stagec-opt %s -p exchange-counts | filecheck %s

// CHECK-NOT: dist.exchange_counts
%y, %i = "test.op"() : () -> (!stg.tensor<[X/ep, C, D], bf16>, !stg.tensor<[B/ep, A], i32>)
%e = dist.all_to_all %y gather "X" scatter "C" over [ep] : !stg.tensor<[X/ep, C, D], bf16> -> !stg.tensor<[X, C/ep, D], bf16>
%o = stg.combine %e by %i : (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> !stg.tensor<[B/ep, D], bf16>

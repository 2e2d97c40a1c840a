// How many tokens come to each expert is told right before the tokens travel.
// RUN: stagec-opt %s -p exchange-counts | filecheck %s

%x, %i = "test.op"() : () -> (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>)
// CHECK: %[[TOKENS:[^ ]*]], %[[COUNTS:[^ ]*]] = stg.dispatch
%r, %n = stg.dispatch %x by %i to "X" "C" dropless
  : (!stg.tensor<[B/ep, D], bf16>, !stg.tensor<[B/ep, A], i32>) -> (!stg.tensor<[X, C/ep, D], bf16>, !stg.tensor<[X], i64>)
// CHECK-NEXT: dist.exchange_counts %[[COUNTS]] over [ep]
// CHECK-NEXT: dist.all_to_all %[[TOKENS]]
%e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/ep, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>

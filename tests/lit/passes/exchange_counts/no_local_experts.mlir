// Where every device has all experts, no token travels.
// RUN: stagec-opt %s -p exchange-counts | filecheck %s

// CHECK-NOT: dist.exchange_counts
%x, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" dropless
  : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>) -> (!stg.tensor<[X, C/dp, D], bf16>, !stg.tensor<[X], i64>)
"test.op"(%r) : (!stg.tensor<[X, C/dp, D], bf16>) -> ()

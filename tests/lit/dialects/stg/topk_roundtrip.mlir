// The best experts of each token: how much each counts, and its number.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%s = "test.op"() : () -> !stg.tensor<[B/dp, S, X], bf16>

// CHECK: %g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B/dp, S, X], bf16>) -> (!stg.tensor<[B/dp, S, A], bf16>, !stg.tensor<[B/dp, S, A], i32>)
%g, %i = stg.topk %s over "X" to "A" : (!stg.tensor<[B/dp, S, X], bf16>) -> (!stg.tensor<[B/dp, S, A], bf16>, !stg.tensor<[B/dp, S, A], i32>)

// CHECK: stg.topk %s over "X" to "A" normalise : (!stg.tensor<[B/dp, S, X], bf16>)
%h, %j = stg.topk %s over "X" to "A" normalise : (!stg.tensor<[B/dp, S, X], bf16>) -> (!stg.tensor<[B/dp, S, A], bf16>, !stg.tensor<[B/dp, S, A], i32>)

// The choice may be biased, and of few groups.
%b = "test.op"() : () -> !stg.tensor<[X], fp32>

// CHECK: stg.topk %s bias %b over "X" to "A" groups "8" limit "4" : (!stg.tensor<[B/dp, S, X], bf16>, !stg.tensor<[X], fp32>)
%k, %l = stg.topk %s bias %b over "X" to "A" groups "8" limit "4"
  : (!stg.tensor<[B/dp, S, X], bf16>, !stg.tensor<[X], fp32>) -> (!stg.tensor<[B/dp, S, A], bf16>, !stg.tensor<[B/dp, S, A], i32>)

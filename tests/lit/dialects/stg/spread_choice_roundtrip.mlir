// A row of all experts for each token: booleans, or weights.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, X.all], bool>
%m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, X.all], bool>

// CHECK: %w = stg.spread_choice %i weights %g to "X.all" : (!stg.tensor<[B/dp, A], i32>, !stg.tensor<[B/dp, A], fp32>) -> !stg.tensor<[B/dp, X.all], fp32>
%w = stg.spread_choice %i weights %g to "X.all" : (!stg.tensor<[B/dp, A], i32>, !stg.tensor<[B/dp, A], fp32>) -> !stg.tensor<[B/dp, X.all], fp32>

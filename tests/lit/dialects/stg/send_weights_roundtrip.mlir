// The weight of each copy, split over all axes that split the tokens.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, S/cp, A], fp32>, !stg.tensor<[B/dp, S/cp, A], i32>)

// CHECK: %w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B/dp, S/cp, A], fp32>, !stg.tensor<[B/dp, S/cp, A], i32>) -> !stg.tensor<[X, N/(cp*dp)], fp32>
%w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B/dp, S/cp, A], fp32>, !stg.tensor<[B/dp, S/cp, A], i32>) -> !stg.tensor<[X, N/(cp*dp)], fp32>

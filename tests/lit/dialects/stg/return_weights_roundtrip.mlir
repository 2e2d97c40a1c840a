// A number for each chosen expert, from those of the copies.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%w, %i = "test.op"() : () -> (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %g = stg.return_weights %w by %i : (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32>
%g = stg.return_weights %w by %i : (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32>

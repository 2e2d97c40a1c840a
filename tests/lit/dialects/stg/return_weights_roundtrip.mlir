// A number for each chosen expert, from those of the copies; of a device's own experts, a term of it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%w, %i = "test.op"() : () -> (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>)

// CHECK: %g = stg.return_weights %w by %i : (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32>
%g = stg.return_weights %w by %i : (!stg.tensor<[X, N/dp], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[B/dp, A], fp32>

%c, %k = "test.op"() : () -> (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B, X.all], bool>)

// CHECK: %h = stg.return_weights %c by %k : (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B, X.all], bool>) -> !stg.tensor<[B, X.all], fp32, partial [ep]>
%h = stg.return_weights %c by %k : (!stg.tensor<[X/ep, N], fp32>, !stg.tensor<[B, X.all], bool>) -> !stg.tensor<[B, X.all], fp32, partial [ep]>

// There is a number for each copy of a token, split as the tokens are.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.send_weights`: <[X, N], fp32> is not a number for each copy of the tokens of <[B/dp, A], i32>
%g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>)
%w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[X, N], fp32>

// -----

// CHECK: error[E0709]: `stg.send_weights`: weights <[B, A], fp32> are not those of experts <[B/dp, A], i32>
%g, %i = "test.op"() : () -> (!stg.tensor<[B, A], fp32>, !stg.tensor<[B/dp, A], i32>)
%w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B, A], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[X, N/dp], fp32>

// -----

// CHECK: error[E0709]: `stg.send_weights`: <[X, N/dp], bf16> are not the weights <[B/dp, A], fp32>
%g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>)
%w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[X, N/dp], bf16>

// -----

// CHECK: error[E0709]: `stg.send_weights`: <[Y, N/dp], fp32> is not over `X` and `N`
%g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>)
%w = stg.send_weights %g by %i to "X" "N" : (!stg.tensor<[B/dp, A], fp32>, !stg.tensor<[B/dp, A], i32>) -> !stg.tensor<[Y, N/dp], fp32>

// A row is of all experts, and of the weights that it is made of.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.spread_choice`: <[S, X.all], bool> is not a row for each token of <[B, A], i32>
%i = "test.op"() : () -> !stg.tensor<[B, A], i32>
%m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B, A], i32>) -> !stg.tensor<[S, X.all], bool>

// -----

// CHECK: error[E0709]: `stg.spread_choice`: each row of <[B, X.all/ep], bool> is of all experts
%i = "test.op"() : () -> !stg.tensor<[B, A], i32>
%m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B, A], i32>) -> !stg.tensor<[B, X.all/ep], bool>

// -----

// CHECK: error[E0709]: `stg.spread_choice`: <[B, X.all], fp32> is no row of <[B, A], bool> over `X.all`
%i = "test.op"() : () -> !stg.tensor<[B, A], i32>
%m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B, A], i32>) -> !stg.tensor<[B, X.all], fp32>

// -----

// CHECK: error[E0709]: `stg.spread_choice`: weights <[S, A], fp32> are not those of experts <[B, A], i32>
%g, %i = "test.op"() : () -> (!stg.tensor<[S, A], fp32>, !stg.tensor<[B, A], i32>)
%m = stg.spread_choice %i weights %g to "X.all" : (!stg.tensor<[B, A], i32>, !stg.tensor<[S, A], fp32>) -> !stg.tensor<[B, X.all], fp32>

// -----

// CHECK: error[E0709]: `stg.spread_choice`: numbers of experts are i32 or i64, not fp32
%i = "test.op"() : () -> !stg.tensor<[B, A], fp32>
%m = stg.spread_choice %i to "X.all" : (!stg.tensor<[B, A], fp32>) -> !stg.tensor<[B, X.all], bool>

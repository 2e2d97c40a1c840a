// What splits tokens splits experts' tokens; a dispatch moves and changes nothing.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.dispatch`: tokens are split over [dp], experts' tokens over []
%x, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A], i32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: tokens <[B, D], bf16> do not go to experts as <[X, C, F], bf16>
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, F], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: experts <[S, A], i32> are not those of tokens <[B, D], bf16>
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[S, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[S, A], i32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: weights <[B, X], bf16> are not those of experts <[B, A], i32>
%x, %i, %g = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, X], bf16>)
%r, %n = stg.dispatch %x by %i weights %g to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>, !stg.tensor<[B, X], bf16>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: numbers of experts are i32 or i64, not fp32
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], fp32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], fp32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: tokens <[B/dp, D], bf16>, experts <[B, A], i32> and experts' tokens <[X, C/dp, D], bf16> are not split alike
%x, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C/dp, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: each device needs all of `A`
%x, %i = "test.op"() : () -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A/ep], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, A/ep], i32>) -> (!stg.tensor<[X, C/dp, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: <[Y, C, D], bf16> does not begin with `X` and `C`
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[Y, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: copies of <[B, D], bf16> are not <[X, C, D], fp32>: a dispatch moves
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, D], fp32>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: copies of <[B, D], bf16, partial [tp]> are not <[X, C, D], bf16>: a dispatch moves
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16, partial [tp]>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[X], i64>)

// -----

// CHECK: error[E0709]: `stg.dispatch`: counts are <[X], i64>
%x, %i = "test.op"() : () -> (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>)
%r, %n = stg.dispatch %x by %i to "X" "C" : (!stg.tensor<[B, D], bf16>, !stg.tensor<[B, A], i32>) -> (!stg.tensor<[X, C, D], bf16>, !stg.tensor<[A], i64>)

// An algorithm that knows rows, rows that there are, and what flows back to each lookup.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.update_rows`: rows are not updated by `lion`
%t, %i, %dy = "test.op"() : () -> (!stg.tensor<[R, E], fp32>, !stg.tensor<[B, J], i32>, !stg.tensor<[B, E], fp32>)
stg.update_rows "lion" states "fp32" %t by "R" (%i) from (%dy) : !stg.tensor<[R, E], fp32> (!stg.tensor<[B, J], i32>) from (!stg.tensor<[B, E], fp32>)

// -----

// CHECK: error[E0709]: `stg.update_rows`: `J` is not a dim of <[R, E], fp32>
%t, %i, %dy = "test.op"() : () -> (!stg.tensor<[R, E], fp32>, !stg.tensor<[B, J], i32>, !stg.tensor<[B, E], fp32>)
stg.update_rows "sgd" states "fp32" %t by "J" (%i) from (%dy) : !stg.tensor<[R, E], fp32> (!stg.tensor<[B, J], i32>) from (!stg.tensor<[B, E], fp32>)

// -----

// CHECK: error[E0709]: `stg.update_rows`: one `dy` for the numbers of each lookup
%t, %i, %dy = "test.op"() : () -> (!stg.tensor<[R, E], fp32>, !stg.tensor<[B, J], i32>, !stg.tensor<[B, E], fp32>)
stg.update_rows "sgd" states "fp32" %t by "R" (%i, %i) from (%dy) : !stg.tensor<[R, E], fp32> (!stg.tensor<[B, J], i32>, !stg.tensor<[B, J], i32>) from (!stg.tensor<[B, E], fp32>)

// -----

// CHECK: error[E0709]: `stg.update_rows`: rows of <[R, E/tp], fp32> are not those of dy <[B, E], fp32>
%t, %i, %dy = "test.op"() : () -> (!stg.tensor<[R, E/tp], fp32>, !stg.tensor<[B, J], i32>, !stg.tensor<[B, E], fp32>)
stg.update_rows "sgd" states "fp32" %t by "R" (%i) from (%dy) : !stg.tensor<[R, E/tp], fp32> (!stg.tensor<[B, J], i32>) from (!stg.tensor<[B, E], fp32>)

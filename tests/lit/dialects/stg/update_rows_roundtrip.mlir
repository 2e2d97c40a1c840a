// Rows of a table are updated from what flows back to lookups of any form.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%t, %i, %j, %dy, %dz = "test.op"() : () -> (!stg.tensor<[T, R/ep, E], fp32>, !stg.tensor<[B, T, J], i32>, !stg.tensor<[B, T], i32>, !stg.tensor<[B, T, E], bf16>, !stg.tensor<[B, T, E], bf16>)

// CHECK:      stg.update_rows "rowwise_adagrad" states "fp32" %t by "R"(%i, %j) from(%dy, %dz)
// CHECK-SAME:   : !stg.tensor<[T, R/ep, E], fp32>(!stg.tensor<[B, T, J], i32>, !stg.tensor<[B, T], i32>) from(!stg.tensor<[B, T, E], bf16>, !stg.tensor<[B, T, E], bf16>)
stg.update_rows "rowwise_adagrad" states "fp32" %t by "R" (%i, %j) from (%dy, %dz)
  : !stg.tensor<[T, R/ep, E], fp32> (!stg.tensor<[B, T, J], i32>, !stg.tensor<[B, T], i32>) from (!stg.tensor<[B, T, E], bf16>, !stg.tensor<[B, T, E], bf16>)

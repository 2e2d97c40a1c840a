// Copies go to parts of parts of the same device; there is a count for each.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.fan_out`: <[P/en, U/el, D], bf16> and <[Q/(en*el), V, D], bf16> are not split alike: copies do not travel
%c = "test.op"() : () -> !stg.tensor<[P/en, U/el, D], bf16>
%f, %n = stg.fan_out %c to "Q" "V" : (!stg.tensor<[P/en, U/el, D], bf16>) -> (!stg.tensor<[Q/(en*el), V, D], bf16>, !stg.tensor<[Q/(en*el)], i64>)

// -----

// CHECK: error[E0709]: `stg.fan_out`: copies <[P, U, D], bf16> do not become <[Q, V, F], bf16>
%c = "test.op"() : () -> !stg.tensor<[P, U, D], bf16>
%f, %n = stg.fan_out %c to "Q" "V" : (!stg.tensor<[P, U, D], bf16>) -> (!stg.tensor<[Q, V, F], bf16>, !stg.tensor<[Q], i64>)

// -----

// CHECK: error[E0709]: `stg.fan_out`: <[Q, W, D], bf16> are not copies for `Q` of <[P, U, D], bf16>
%c = "test.op"() : () -> !stg.tensor<[P, U, D], bf16>
%f, %n = stg.fan_out %c to "Q" "V" : (!stg.tensor<[P, U, D], bf16>) -> (!stg.tensor<[Q, W, D], bf16>, !stg.tensor<[Q], i64>)

// -----

// CHECK: error[E0709]: `stg.fan_out`: counts are <[Q], i64>
%c = "test.op"() : () -> !stg.tensor<[P, U, D], bf16>
%f, %n = stg.fan_out %c to "Q" "V" : (!stg.tensor<[P, U, D], bf16>) -> (!stg.tensor<[Q, V, D], bf16>, !stg.tensor<[Q], i32>)

// -----

// CHECK: error[E0709]: `stg.fan_out`: it is not linear in operand 1, which is partial: <[B, A], bf16, partial [tp]>
%c, %g = "test.op"() : () -> (!stg.tensor<[P, U, D], bf16>, !stg.tensor<[B, A], bf16, partial [tp]>)
%f, %n = stg.fan_out %c weights %g to "Q" "V"
  : (!stg.tensor<[P, U, D], bf16>, !stg.tensor<[B, A], bf16, partial [tp]>) -> (!stg.tensor<[Q, V, D], bf16>, !stg.tensor<[Q], i64>)

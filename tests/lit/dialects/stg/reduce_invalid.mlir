// A reduction is a sum, a mean or a maximum, over dims of its operand.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.reduce`: there is no reduction `min`
%x = "test.op"() : () -> !stg.tensor<[B, D], bf16>
%y = stg.reduce "min" %x over [D] : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `stg.reduce`: the result is <[B], bf16>, but its operands make it <[B], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[B, D/tp], bf16>
%y = stg.reduce "sum" %x over [D] : (!stg.tensor<[B, D/tp], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `stg.reduce`: <[B, S, D], bf16> does not become <[B], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, S, D], bf16>
%y = stg.reduce "sum" %x over [D] : (!stg.tensor<[B, S, D], bf16>) -> !stg.tensor<[B], bf16>

// -----

// CHECK: error[E0709]: `stg.reduce`: it is not linear in operand 0, which is partial: <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y = stg.reduce "max" %x over [D] : (!stg.tensor<[D], bf16, partial [tp]>) -> !stg.tensor<[], bf16>

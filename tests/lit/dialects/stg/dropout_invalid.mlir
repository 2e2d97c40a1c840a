// A term of a sum is no value to choose from, and the mask is spread as the value.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.dropout`: it is not linear in operand 0, which is partial: <[D], bf16, partial [tp]>
%x = "test.op"() : () -> !stg.tensor<[D], bf16, partial [tp]>
%y, %mask = stg.dropout %x rate "0.1"
  : (!stg.tensor<[D], bf16, partial [tp]>) -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bool>)

// -----

// CHECK: error[E0709]: `stg.dropout`: the result is <[D], bool>, but its operands make it <[D/tp], bool>
%x = "test.op"() : () -> !stg.tensor<[D/tp], bf16>
%y, %mask = stg.dropout %x rate "0.1"
  : (!stg.tensor<[D/tp], bf16>) -> (!stg.tensor<[D/tp], bf16>, !stg.tensor<[D], bool>)

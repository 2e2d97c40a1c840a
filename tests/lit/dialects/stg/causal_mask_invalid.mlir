// A mask is over two dims of the scores, and replaces values, not terms of a sum.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.causal_mask`: there is no dim `T` in <[S, U], bf16>
%s = "test.op"() : () -> !stg.tensor<[S, U], bf16>
%m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[S, U], bf16>) -> !stg.tensor<[S, U], bf16>

// -----

// CHECK: error[E0709]: `stg.causal_mask`: it is not linear in operand 0, which is partial: <[S, T], bf16, partial [tp]>
%s = "test.op"() : () -> !stg.tensor<[S, T], bf16, partial [tp]>
%m = stg.causal_mask %s query "S" key "T" : (!stg.tensor<[S, T], bf16, partial [tp]>) -> !stg.tensor<[S, T], bf16>

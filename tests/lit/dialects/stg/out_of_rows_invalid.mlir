// Positions of rows become those of the sequences that begin.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.out_of_rows`: <[B.begun, M, D], bf16> in rows is [B, M.begun, D], not <[B, M, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B, M, D], bf16>
%y = stg.out_of_rows %x : (!stg.tensor<[B, M, D], bf16>) -> !stg.tensor<[B.begun, M, D], bf16>

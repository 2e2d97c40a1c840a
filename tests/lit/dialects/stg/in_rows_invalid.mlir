// Rows have the positions of the sequences that begin, on the devices that these are on.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.in_rows`: <[B.begun, M, D], bf16> in rows is [B, M.begun, D], not <[B, M, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B.begun, M, D], bf16>
%y = stg.in_rows %x : (!stg.tensor<[B.begun, M, D], bf16>) -> !stg.tensor<[B, M, D], bf16>

// -----

// CHECK: error[E0709]: `stg.in_rows`: <[B.begun/dp, M, D], bf16> in rows is <[B/dp, M.begun, D], bf16>, not <[B, M.begun, D], bf16>
%x = "test.op"() : () -> !stg.tensor<[B.begun/dp, M, D], bf16>
%y = stg.in_rows %x : (!stg.tensor<[B.begun/dp, M, D], bf16>) -> !stg.tensor<[B, M.begun, D], bf16>

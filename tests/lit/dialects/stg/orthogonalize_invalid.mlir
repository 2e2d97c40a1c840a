// A matrix has rows and columns, which are different dims of its weight, and an update of the same dims.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.orthogonalize`: !stg.tensor<[D, F], bf16> is not a matrix of D, H
%a = "test.op"() : () -> !stg.tensor<[D, F], bf16>
%b = stg.orthogonalize (%a) steps 5 as [#stg.matrix<[D] x [H]>] shared over [] : (!stg.tensor<[D, F], bf16>) -> !stg.tensor<[D, F], bf16>

// -----

// CHECK: error[E0709]: `stg.orthogonalize`: a matrix has rows and columns
%a = "test.op"() : () -> !stg.tensor<[D, F], bf16>
%b = stg.orthogonalize (%a) steps 5 as [#stg.matrix<[D] x []>] shared over [] : (!stg.tensor<[D, F], bf16>) -> !stg.tensor<[D, F], bf16>

// -----

// CHECK: error[E0709]: `stg.orthogonalize`: !stg.tensor<[D, F], bf16> has no rows
%a = "test.op"() : () -> !stg.tensor<[D, F], bf16>
%b = stg.orthogonalize (%a) steps 5 as [#stg.matrix<[] x []>] shared over [] : (!stg.tensor<[D, F], bf16>) -> !stg.tensor<[D, F], bf16>

// -----

// CHECK: error[E0709]: `stg.orthogonalize`: !stg.tensor<[F, D], bf16> of !stg.tensor<[D, F], bf16>
%a = "test.op"() : () -> !stg.tensor<[D, F], bf16>
%b = stg.orthogonalize (%a) steps 5 as [#stg.matrix<[D] x [F]>] shared over [] : (!stg.tensor<[D, F], bf16>) -> !stg.tensor<[F, D], bf16>

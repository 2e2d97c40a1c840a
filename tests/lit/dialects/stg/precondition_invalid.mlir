// Shampoo and SOAP have factors of matrices, and of vectors, of every gradient.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.precondition`: `muon` has no factors
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%a = stg.precondition "muon" <block 8 every 1> (%g) as [#stg.matrix<[D] x []>] : (!stg.tensor<[D], fp32>) -> (!stg.tensor<[D], fp32>)

// -----

// CHECK: error[E0709]: `stg.precondition`: one matrix per gradient
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%a = stg.precondition "soap" <block 8 every 1> (%g) as [] : (!stg.tensor<[D], fp32>) -> (!stg.tensor<[D], fp32>)

// -----

// CHECK: error[E0709]: `stg.precondition`: !stg.tensor<[D], fp32> has no rows
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
%a = stg.precondition "soap" <block 8 every 1> (%g) as [#stg.matrix<[] x []>] : (!stg.tensor<[D], fp32>) -> (!stg.tensor<[D], fp32>)

// -----

// CHECK: error[E0709]: `stg.precondition`: gradients come out in fp32
%g = "test.op"() : () -> !stg.tensor<[D], bf16>
%a = stg.precondition "soap" <block 8 every 1> (%g) as [#stg.matrix<[D] x []>] : (!stg.tensor<[D], bf16>) -> (!stg.tensor<[D], bf16>)

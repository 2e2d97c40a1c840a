// A copy is of something, and has its type.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.store`: a copy has the type of what is copied
%x = "test.op"() : () -> !stg.tensor<[B, D], fp32>
%h = dist.store (%x) : (!stg.tensor<[B, D], fp32>) -> !stg.tensor<[B, D], bf16>

// -----

// CHECK: error[E0709]: `dist.store`: a copy is of some value
dist.store () : () -> ()

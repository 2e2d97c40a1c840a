// A sum of gradients has the type of each, and givers are numbered from 0.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `dist.take_gradient`: !stg.tensor<[V/tp, D], fp32> does not add up to !stg.tensor<[V, D], fp32>
%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>
%t = dist.take_gradient "embed" 0 %g : !stg.tensor<[V/tp, D], fp32> -> !stg.tensor<[V, D], fp32>

// -----

// CHECK: error[E0709]: `dist.take_gradient`: numbers count from 0, not from -1
%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>
%t = dist.take_gradient "embed" -1 %g : !stg.tensor<[V/tp, D], fp32> -> !stg.tensor<[V/tp, D], fp32>

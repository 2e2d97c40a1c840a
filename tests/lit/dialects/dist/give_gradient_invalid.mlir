// A gradient is given for a weight that has a path.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `dist.give_gradient`: the weight has no path
%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>
dist.give_gradient "" %g : !stg.tensor<[V/tp, D], fp32>

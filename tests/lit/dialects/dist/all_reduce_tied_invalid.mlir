// The sum has the type of its terms.
// RUN: stagec-opt %s --verify-diagnostics | filecheck %s

// CHECK: error[E0709]: `dist.all_reduce_tied`
%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>
%t = dist.all_reduce_tied "embed" (%g) over [pp] in "fp32" : (!stg.tensor<[V/tp, D], fp32>) -> !stg.tensor<[V, D], fp32>

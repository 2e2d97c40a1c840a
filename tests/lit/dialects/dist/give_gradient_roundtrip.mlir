// A stage gives its gradient of a tied weight, by the weight's path.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>

// CHECK: dist.give_gradient "embed" %g : !stg.tensor<[V/tp, D], fp32>
dist.give_gradient "embed" %g : !stg.tensor<[V/tp, D], fp32>

// A stage adds what another one gives to its own gradient.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>

// CHECK: %{{.*}} = dist.take_gradient "embed" 0 %g : !stg.tensor<[V/tp, D], fp32> -> !stg.tensor<[V/tp, D], fp32>
%t = dist.take_gradient "embed" 0 %g : !stg.tensor<[V/tp, D], fp32> -> !stg.tensor<[V/tp, D], fp32>

// A tied weight's gradient is summed over the stages that have it.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g = "test.op"() : () -> !stg.tensor<[V/tp, D], fp32>

// CHECK: %{{.*}} = dist.all_reduce_tied "embed"(%g) over [pp] in "fp32" : (!stg.tensor<[V/tp, D], fp32>) -> !stg.tensor<[V/tp, D], fp32>
%t = dist.all_reduce_tied "embed" (%g) over [pp] in "fp32" : (!stg.tensor<[V/tp, D], fp32>) -> !stg.tensor<[V/tp, D], fp32>

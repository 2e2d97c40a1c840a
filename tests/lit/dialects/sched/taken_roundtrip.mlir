// What another stage of the rank gives is a value without a node.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

// CHECK: %{{.*}} = sched.taken "embed" 0 : !stg.tensor<[V/tp, D], fp32>
%g = sched.taken "embed" 0 : !stg.tensor<[V/tp, D], fp32>

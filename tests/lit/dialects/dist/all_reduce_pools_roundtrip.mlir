// What each pool has of a norm goes to all ranks of the job.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%n = "test.op"() : () -> !stg.tensor<[], fp32>

// CHECK: %{{.*}} = dist.all_reduce_pools 2 %n among 6 over [all_pools] : !stg.tensor<[], fp32> -> !stg.tensor<[], fp32>
%a = dist.all_reduce_pools 2 %n among 6 over [all_pools] : !stg.tensor<[], fp32> -> !stg.tensor<[], fp32>

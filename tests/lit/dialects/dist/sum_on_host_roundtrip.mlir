// The host adds what is stored to what earlier microbatches stored.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%h = "test.op"() : () -> !stg.tensor<[B, D], fp32>

// CHECK: %x = dist.sum_on_host(%h) : (!stg.tensor<[B, D], fp32>) -> !stg.tensor<[B, D], fp32>
%x = dist.sum_on_host (%h) : (!stg.tensor<[B, D], fp32>) -> !stg.tensor<[B, D], fp32>

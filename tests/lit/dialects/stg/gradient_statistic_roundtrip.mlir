// The norm of gradients is one number, a term on each rank.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g = "test.op"() : () -> !dist.shard<!stg.tensor<[D], fp32> over [dp]>
// CHECK: stg.gradient_statistic "norm"(%g) : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>) -> !stg.tensor<[], fp32, partial [dp]>
%n = stg.gradient_statistic "norm" (%g) : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>) -> !stg.tensor<[], fp32, partial [dp]>

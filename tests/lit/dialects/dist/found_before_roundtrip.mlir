// What the stage before on the same rank found goes on in what this one finds.
// RUN: stagec-opt %s | stagec-opt | filecheck %s

!n = !stg.tensor<[], fp32, partial [pp]>
%g = "test.op"() : () -> !stg.tensor<[D], fp32>
// CHECK: %[[BEFORE:.*]] = dist.found_before "norm" : !stg.tensor<[], fp32, partial [pp]>
%before = dist.found_before "norm" : !n
// CHECK: stg.gradient_statistic "norm"(%g) from %[[BEFORE]] : !stg.tensor<[], fp32, partial [pp]> : (!stg.tensor<[D], fp32>)
%found = stg.gradient_statistic "norm" (%g) from %before : !n : (!stg.tensor<[D], fp32>) -> !n

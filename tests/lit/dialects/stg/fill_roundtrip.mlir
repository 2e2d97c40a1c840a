// What is computed once for a sequence is written into a cache, and read from there.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = stg.cache "k" : !stg.tensor<[B/dp, C, H/tp, E], fp8>
%x = "test.op"() : () -> !stg.tensor<[B/dp, C, H/tp, E], bf16>

// CHECK: %all = stg.fill %k, %x : (!stg.tensor<[B/dp, C, H/tp, E], fp8>, !stg.tensor<[B/dp, C, H/tp, E], bf16>) -> !stg.tensor<[B/dp, C, H/tp, E], fp8>
%all = stg.fill %k, %x : (!stg.tensor<[B/dp, C, H/tp, E], fp8>, !stg.tensor<[B/dp, C, H/tp, E], bf16>) -> !stg.tensor<[B/dp, C, H/tp, E], fp8>

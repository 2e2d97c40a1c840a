// How many tokens go to each expert, told before they go.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%n = "test.op"() : () -> !stg.tensor<[X], i64>

// CHECK: %m = dist.exchange_counts %n over [ep] : !stg.tensor<[X], i64> -> !stg.tensor<[X], i64>
%m = dist.exchange_counts %n over [ep] : !stg.tensor<[X], i64> -> !stg.tensor<[X], i64>

// Each device keeps its shard, of a partial value too.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16, partial [cp]>

// CHECK: %y = dist.slice %x dim "B" over [tp] : !stg.tensor<[B/dp, D], bf16, partial [cp]> -> !stg.tensor<[B/(dp*tp), D], bf16, partial [cp]>
%y = dist.slice %x dim "B" over [tp]
  : !stg.tensor<[B/dp, D], bf16, partial [cp]> -> !stg.tensor<[B/(dp*tp), D], bf16, partial [cp]>

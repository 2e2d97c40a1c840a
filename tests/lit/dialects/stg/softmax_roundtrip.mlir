// The dims over which the probabilities add up to one may be split.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, H, S, T/cp], bf16>

// CHECK: %y = stg.softmax %x over [T] : (!stg.tensor<[B/dp, H, S, T/cp], bf16>) -> !stg.tensor<[B/dp, H, S, T/cp], bf16>
%y = stg.softmax %x over [T]
  : (!stg.tensor<[B/dp, H, S, T/cp], bf16>) -> !stg.tensor<[B/dp, H, S, T/cp], bf16>

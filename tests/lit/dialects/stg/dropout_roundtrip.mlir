// A share of the elements is zeroed; the mask has a byte for each.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, D], bf16>

// CHECK: %y, %mask = stg.dropout %x rate "0.1" : (!stg.tensor<[B/dp, D], bf16>) -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bool>)
%y, %mask = stg.dropout %x rate "0.1"
  : (!stg.tensor<[B/dp, D], bf16>) -> (!stg.tensor<[B/dp, D], bf16>, !stg.tensor<[B/dp, D], bool>)

// Any change of placement of the same tensor.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S, D/tp], bf16, partial [cp]>

// CHECK: %y = dist.reshard %x : !stg.tensor<[B/dp, S, D/tp], bf16, partial [cp]> -> !stg.tensor<[B, S/(tp*cp), D], bf16>
%y = dist.reshard %x
  : !stg.tensor<[B/dp, S, D/tp], bf16, partial [cp]> -> !stg.tensor<[B, S/(tp*cp), D], bf16>

// CHECK: %z = dist.reshard %y {at_once} : !stg.tensor<[B, S/(tp*cp), D], bf16> -> !stg.tensor<[B, S, D], bf16>
%z = dist.reshard %y {at_once} : !stg.tensor<[B, S/(tp*cp), D], bf16> -> !stg.tensor<[B, S, D], bf16>

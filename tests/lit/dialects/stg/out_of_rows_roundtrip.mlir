// What stands in front of sequences that begin, in the rows that they are in, and apart again.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B.begun/dp, M, D], bf16>

// CHECK: %y = stg.in_rows %x : (!stg.tensor<[B.begun/dp, M, D], bf16>) -> !stg.tensor<[B/dp, M.begun, D], bf16>
%y = stg.in_rows %x : (!stg.tensor<[B.begun/dp, M, D], bf16>) -> !stg.tensor<[B/dp, M.begun, D], bf16>
// CHECK: %z = stg.out_of_rows %y : (!stg.tensor<[B/dp, M.begun, D], bf16>) -> !stg.tensor<[B.begun/dp, M, D], bf16>
%z = stg.out_of_rows %y : (!stg.tensor<[B/dp, M.begun, D], bf16>) -> !stg.tensor<[B.begun/dp, M, D], bf16>

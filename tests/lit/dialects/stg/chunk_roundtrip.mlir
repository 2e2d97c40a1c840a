// Chunks of a tensor along one dim.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[B/dp, S/cp, D], bf16>

// CHECK: %c = stg.chunk %x dim "S" : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B/dp, S/(loss.chunk*cp), D], bf16>>
%c = stg.chunk %x dim "S" : !stg.tensor<[B/dp, S/cp, D], bf16> -> !stg.stack<"loss.chunk" x !stg.tensor<[B/dp, S/(loss.chunk*cp), D], bf16>>

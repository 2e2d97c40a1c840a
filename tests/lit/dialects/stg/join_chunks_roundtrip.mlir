// Chunks that were made one after the other, as one tensor.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%c = "test.op"() : () -> !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], fp32>>

// CHECK: %x = stg.join_chunks %c dim "S" : !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], fp32>> -> !stg.tensor<[S], fp32>
%x = stg.join_chunks %c dim "S" : !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], fp32>> -> !stg.tensor<[S], fp32>

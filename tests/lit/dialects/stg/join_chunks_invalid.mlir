// What is joined are chunks of the result.
// RUN: stagec-opt %s --verify-diagnostics --split-input-file | filecheck %s

// CHECK: error[E0709]: `stg.join_chunks`: the chunks of !stg.tensor<[S], fp32> are !stg.stack<"loss.chunk" x !stg.tensor<[S/loss.chunk], fp32>>, not
%c = "test.op"() : () -> !stg.stack<"loss.chunk" x !stg.tensor<[S], fp32>>
%x = stg.join_chunks %c dim "S" : !stg.stack<"loss.chunk" x !stg.tensor<[S], fp32>> -> !stg.tensor<[S], fp32>

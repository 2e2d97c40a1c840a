// Updates come out in single precision, spread as the gradients are.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %h, %n = "test.op"() : () -> (!dist.shard<!stg.tensor<[D], bf16> over [dp]>, !stg.stack<"L" x !stg.tensor<[D, F], fp32>>, !stg.tensor<[], fp32>)
// CHECK: %a, %b = stg.precondition "soap" <block 512 every 10 by_rows>(%g, %h) as [#stg.matrix<[D] x []>, #stg.matrix<[D] x [F]>] scaled by %n : !stg.tensor<[], fp32> : (!dist.shard<!stg.tensor<[D], bf16> over [dp]>, !stg.stack<"L" x !stg.tensor<[D, F], fp32>>) -> (!dist.shard<!stg.tensor<[D], fp32> over [dp]>, !stg.stack<"L" x !stg.tensor<[D, F], fp32>>)
%a, %b = stg.precondition "soap" <block 512 every 10 by_rows> (%g, %h) as [#stg.matrix<[D] x []>, #stg.matrix<[D] x [F]>] scaled by %n : !stg.tensor<[], fp32>
  : (!dist.shard<!stg.tensor<[D], bf16> over [dp]>, !stg.stack<"L" x !stg.tensor<[D, F], fp32>>) -> (!dist.shard<!stg.tensor<[D], fp32> over [dp]>, !stg.stack<"L" x !stg.tensor<[D, F], fp32>>)

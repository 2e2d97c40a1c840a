// Momenta come out in bf16, spread as the gradients are.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%g, %h, %n = "test.op"() : () -> (!dist.shard<!stg.tensor<[D], fp32> over [dp]>, !stg.stack<"L" x !stg.tensor<[D], fp32>>, !stg.tensor<[], fp32>)
// CHECK: %a, %b = stg.momentum states "fp32"(%g, %h) scaled by %n : !stg.tensor<[], fp32> : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>, !stg.stack<"L" x !stg.tensor<[D], fp32>>) -> (!dist.shard<!stg.tensor<[D], bf16> over [dp]>, !stg.stack<"L" x !stg.tensor<[D], bf16>>)
%a, %b = stg.momentum states "fp32" (%g, %h) scaled by %n : !stg.tensor<[], fp32>
  : (!dist.shard<!stg.tensor<[D], fp32> over [dp]>, !stg.stack<"L" x !stg.tensor<[D], fp32>>) -> (!dist.shard<!stg.tensor<[D], bf16> over [dp]>, !stg.stack<"L" x !stg.tensor<[D], bf16>>)

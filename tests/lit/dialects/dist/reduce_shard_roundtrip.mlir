// Gradients are summed, and each rank keeps its shard in their dtype.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a, %b = "test.op"() : () -> (!stg.tensor<[D, F/tp], bf16, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16, partial [dp]>>)

// CHECK: %g, %gs = dist.reduce_shard(%a, %b) over [dp] in "fp32" : (!stg.tensor<[D, F/tp], bf16, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16, partial [dp]>>) -> (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>>)
%g, %gs = dist.reduce_shard (%a, %b) over [dp] in "fp32"
  : (!stg.tensor<[D, F/tp], bf16, partial [dp]>, !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16, partial [dp]>>) -> (!dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>>)

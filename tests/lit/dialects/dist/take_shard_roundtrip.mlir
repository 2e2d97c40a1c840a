// A rank's shard of whole parameters.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a = "test.op"() : () -> !stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>

// CHECK: %s = dist.take_shard(%a) over [dp] in "bf16" : (!stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>) -> !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>>
%s = dist.take_shard (%a) over [dp] in "bf16"
  : (!stg.stack<"L" x !stg.tensor<[D, F/tp], bf16>>) -> !stg.stack<"L" x !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp]>>

// A rank's part of what was gathered, padded as that was.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a = "test.op"() : () -> !stg.tensor<[D, F/tp], bf16>

// CHECK: %s = dist.keep_shard(%a) over [dp] in "bf16" : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp] within [node]>
%s = dist.keep_shard (%a) over [dp] in "bf16"
  : (!stg.tensor<[D, F/tp], bf16>) -> !dist.shard<!stg.tensor<[D, F/tp], bf16> over [dp] within [node]>

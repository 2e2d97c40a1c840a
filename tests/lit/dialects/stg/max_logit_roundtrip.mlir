// The largest of the logits that a device has: no sum, so not partial.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%l = "test.op"() : () -> !stg.tensor<[B/dp, S, V/tp], bf16>

// CHECK: %m = stg.max_logit %l : (!stg.tensor<[B/dp, S, V/tp], bf16>) -> !stg.tensor<[B/dp, S], fp32>
%m = stg.max_logit %l : (!stg.tensor<[B/dp, S, V/tp], bf16>) -> !stg.tensor<[B/dp, S], fp32>

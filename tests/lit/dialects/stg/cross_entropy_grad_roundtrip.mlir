// The gradient of a cross-entropy needs no sum over the vocabulary.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%d, %l, %t, %lse = "test.op"() : () -> (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>)

// CHECK: %dl = stg.cross_entropy_grad %d, %l, %t, %lse : (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, V/tp], bf16>
%dl = stg.cross_entropy_grad %d, %l, %t, %lse
  : (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, V/tp], bf16>

// In the memory of the logits.
// CHECK: %dm = stg.cross_entropy_grad %d, %l, %t, %lse over_logits :
%dm = stg.cross_entropy_grad %d, %l, %t, %lse over_logits
  : (!stg.tensor<[], fp32>, !stg.tensor<[B/dp, S, V/tp], bf16>, !stg.tensor<[B/dp, S], i32>, !stg.tensor<[B/dp, S], fp32>) -> !stg.tensor<[B/dp, S, V/tp], bf16>

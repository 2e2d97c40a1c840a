// The gradient of repeated heads sums over those that shared one.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = "test.op"() : () -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// CHECK: %h = stg.sum_heads %k "H" to "K" : (!stg.tensor<[B/dp, S, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, K/tp, E], bf16>
%h = stg.sum_heads %k "H" to "K"
  : (!stg.tensor<[B/dp, S, H/tp, E], bf16>) -> !stg.tensor<[B/dp, S, K/tp, E], bf16>

// CHECK: stg.sum_heads %{{.*}} "H" to "K" copies [r] :
%c = "test.op"() : () -> !stg.tensor<[B, H/(kv*r)], bf16>
%d = stg.sum_heads %c "H" to "K" copies [r] : (!stg.tensor<[B, H/(kv*r)], bf16>) -> !stg.tensor<[B, K/kv], bf16, partial [r]>

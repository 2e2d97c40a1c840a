// Key heads repeated for the query heads that share them; what splits one splits the other.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = "test.op"() : () -> !stg.tensor<[B/dp, S, K/tp, E], bf16>

// CHECK: %h = stg.repeat_heads %k "K" to "H" : (!stg.tensor<[B/dp, S, K/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>
%h = stg.repeat_heads %k "K" to "H"
  : (!stg.tensor<[B/dp, S, K/tp, E], bf16>) -> !stg.tensor<[B/dp, S, H/tp, E], bf16>

// CHECK: stg.repeat_heads %{{.*}} "K" to "H" copies [r] :
%c = "test.op"() : () -> !stg.tensor<[B, K/kv], bf16>
%d = stg.repeat_heads %c "K" to "H" copies [r] : (!stg.tensor<[B, K/kv], bf16>) -> !stg.tensor<[B, H/(kv*r)], bf16>

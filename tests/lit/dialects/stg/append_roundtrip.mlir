// New positions join those that memory is set aside for; the result is what is attended to.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%k = stg.cache "k" : !stg.tensor<[B/dp, T.stored, K/tp, E], fp8>
%new = "test.op"() : () -> !stg.tensor<[B/dp, S, K/tp, E], bf16>

// CHECK: %all = stg.append %k, %new over "S" into "T" : (!stg.tensor<[B/dp, T.stored, K/tp, E], fp8>, !stg.tensor<[B/dp, S, K/tp, E], bf16>) -> !stg.tensor<[B/dp, T, K/tp, E], fp8>
%all = stg.append %k, %new over "S" into "T" : (!stg.tensor<[B/dp, T.stored, K/tp, E], fp8>, !stg.tensor<[B/dp, S, K/tp, E], bf16>) -> !stg.tensor<[B/dp, T, K/tp, E], fp8>

// Of positions that ranks share, one writes its own alone.
// CHECK: stg.append %{{.*}}, %new over "S" into "T" own "-ceildiv(-cp.index + 61, cp) + ceildiv(-cp.index + 64, cp)" :
%kept = stg.cache "kept" : !stg.tensor<[B/dp, T.stored/cp, K/tp, E], fp8>
%mine = stg.append %kept, %new over "S" into "T" own "ceildiv(64 - cp.index, cp) - ceildiv(61 - cp.index, cp)"
  : (!stg.tensor<[B/dp, T.stored/cp, K/tp, E], fp8>, !stg.tensor<[B/dp, S, K/tp, E], bf16>) -> !stg.tensor<[B/dp, T/cp, K/tp, E], fp8>

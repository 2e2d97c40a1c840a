// Whole matrices become the parts of their updates that a rank stores; a weight of experts is as many matrices.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%a, %b = "test.op"() : () -> (!stg.tensor<[D, H, E], bf16>, !stg.stack<"L" x !stg.tensor<[X/ep, D, F], bf16>>)
// CHECK: stg.orthogonalize(%a, %b) steps 5 : i64 as [#stg.matrix<[D] x [H, E]>, #stg.matrix<[D] x [F]>] shared over [dp]
%c, %d = stg.orthogonalize (%a, %b) steps 5 as [#stg.matrix<[D] x [H, E]>, #stg.matrix<[D] x [F]>] shared over [dp]
  : (!stg.tensor<[D, H, E], bf16>, !stg.stack<"L" x !stg.tensor<[X/ep, D, F], bf16>>)
  -> (!dist.shard<!stg.tensor<[D, H/tp, E], bf16> over [dp]>, !stg.stack<"L" x !dist.shard<!stg.tensor<[X/ep, D, F], bf16> over [dp]>>)

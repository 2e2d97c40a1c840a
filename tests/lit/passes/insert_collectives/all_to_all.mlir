// An axis that splits another dim afterwards is exchanged, not gathered.
// RUN: stagec-opt %s -p insert-collectives | filecheck %s

%x = "test.op"() : () -> !stg.tensor<[X, C/(dp*ep), D], bf16>
// CHECK:     dist.all_to_all %x gather "C" scatter "X" over [ep]
// CHECK-NOT: dist.
%r = dist.reshard %x : !stg.tensor<[X, C/(dp*ep), D], bf16> -> !stg.tensor<[X/ep, C/dp, D], bf16>

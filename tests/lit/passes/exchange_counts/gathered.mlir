// Where tokens are gathered for parts of experts, counts are gathered over these ranks too.
// RUN: stagec-opt %s -p 'exchange-counts{gathered=true}' | filecheck %s

%x, %i = "test.op"() : () -> (!stg.tensor<[B/(etp*ep), D], bf16>, !stg.tensor<[B/(etp*ep), A], i32>)
// CHECK: %[[TOKENS:[^ ]*]], %[[COUNTS:[^ ]*]] = stg.dispatch
%r, %n = stg.dispatch %x by %i to "X" "C" dropless : (!stg.tensor<[B/(etp*ep), D], bf16>, !stg.tensor<[B/(etp*ep), A], i32>)
  -> (!stg.tensor<[X, C/(etp*ep), D], bf16>, !stg.tensor<[X], i64>)
// CHECK-NEXT: dist.exchange_counts %[[COUNTS]] over [ep, etp] gathered
// CHECK-NEXT: dist.all_to_all %[[TOKENS]]
%e = dist.all_to_all %r gather "C" scatter "X" over [ep] : !stg.tensor<[X, C/(etp*ep), D], bf16> -> !stg.tensor<[X/ep, C/etp, D], bf16>
%g = dist.all_gather %e dim "C" over [etp] : !stg.tensor<[X/ep, C/etp, D], bf16> -> !stg.tensor<[X/ep, C, D], bf16>

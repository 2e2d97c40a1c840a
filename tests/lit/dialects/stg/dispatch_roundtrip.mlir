// Tokens copied to their experts' tokens, which are split over all axes that split the tokens.
// RUN: stagec-opt %s | stagec-opt - | filecheck %s

%x, %g, %i = "test.op"() : () -> (!stg.tensor<[B/dp, S/cp, D], bf16>, !stg.tensor<[B/dp, S/cp, A], bf16>, !stg.tensor<[B/dp, S/cp, A], i32>)

// CHECK: %r, %n = stg.dispatch %x by %i to "X" "C" dropless : (!stg.tensor<[B/dp, S/cp, D], bf16>, !stg.tensor<[B/dp, S/cp, A], i32>) -> (!stg.tensor<[X, C/(dp*cp), D], bf16>, !stg.tensor<[X], i64>)
%r, %n = stg.dispatch %x by %i to "X" "C" dropless
  : (!stg.tensor<[B/dp, S/cp, D], bf16>, !stg.tensor<[B/dp, S/cp, A], i32>) -> (!stg.tensor<[X, C/(dp*cp), D], bf16>, !stg.tensor<[X], i64>)

// CHECK: %q, %m = stg.dispatch %x by %i weights %g to "X" "C" : (!stg.tensor<[B/dp, S/cp, D], bf16>, !stg.tensor<[B/dp, S/cp, A], i32>, !stg.tensor<[B/dp, S/cp, A], bf16>) -> (!stg.tensor<[X, C/(cp*dp), D], bf16>, !stg.tensor<[X], i64>)
%q, %m = stg.dispatch %x by %i weights %g to "X" "C"
  : (!stg.tensor<[B/dp, S/cp, D], bf16>, !stg.tensor<[B/dp, S/cp, A], i32>, !stg.tensor<[B/dp, S/cp, A], bf16>) -> (!stg.tensor<[X, C/(cp*dp), D], bf16>, !stg.tensor<[X], i64>)

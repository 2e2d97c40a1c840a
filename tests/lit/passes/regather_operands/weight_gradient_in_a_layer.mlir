// The layer saves the shard, and its weight gradient gathers it again.
// RUN: stagec-opt %s -p 'regather-operands' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp], bf16>) {
  %y, %gs = stg.repeat "L" carry(%h = %x : !stg.tensor<[S/tp], bf16>)
      -> (!stg.tensor<[S/tp], bf16>, !stg.stack<"L" x !stg.tensor<[S], bf16>>) {
    // CHECK: %[[SHARD:[^ ]*]] = stg.unary "exp"
    %e = stg.unary "exp" %h : (!stg.tensor<[S/tp], bf16>) -> !stg.tensor<[S/tp], bf16>
    %g = dist.all_gather %e dim "S" over [tp] : !stg.tensor<[S/tp], bf16> -> !stg.tensor<[S], bf16>
    %n = dist.slice %g dim "S" over [tp] : !stg.tensor<[S], bf16> -> !stg.tensor<[S/tp], bf16>
    // CHECK: stg.yield %{{.*}}, %[[SHARD]] :
    stg.yield %n, %g : !stg.tensor<[S/tp], bf16>, !stg.tensor<[S], bf16>
  }
  // CHECK: reverse carry({{.*}}) slice(%[[SAVED:[^ ]*]] =
  %dx, %dws = stg.repeat "L" reverse carry(%dy = %y : !stg.tensor<[S/tp], bf16>)
      slice(%s = %gs : !stg.stack<"L" x !stg.tensor<[S], bf16>>)
      -> (!stg.tensor<[S/tp], bf16>, !stg.stack<"L" x !stg.tensor<[S], bf16>>) attributes {phase = "bwd"} {
    // CHECK-NEXT: %[[DN:[^ ]*]] = stg.unary "neg"
    %dn = stg.unary "neg" %dy {phase = "bwd"} : (!stg.tensor<[S/tp], bf16>) -> !stg.tensor<[S/tp], bf16>
    // CHECK-NEXT: %[[AGAIN:[^ ]*]] = dist.all_gather %[[SAVED]] dim "S" over [tp] {phase = "wgrad"
    // CHECK-NEXT: stg.mul %[[AGAIN]], %[[AGAIN]]
    %dw = stg.mul %s, %s {phase = "wgrad"} : (!stg.tensor<[S], bf16>, !stg.tensor<[S], bf16>) -> !stg.tensor<[S], bf16>
    stg.yield %dn, %dw : !stg.tensor<[S/tp], bf16>, !stg.tensor<[S], bf16>
  }
  stg.output
}

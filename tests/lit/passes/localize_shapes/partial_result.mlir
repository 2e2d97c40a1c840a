// A result comes out partial where a summed dim is split, and is brought to its own sharding.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S, F/tp], bf16>
  %w = stg.weight "w" : !stg.tensor<[F/tp, D], bf16>
  // CHECK:      %[[TERM:[^ ]*]] = stg.contract {{.*}} -> !stg.tensor<[S, D], bf16, partial [tp]>
  // CHECK-NEXT: dist.reshard %[[TERM]] {{.*}} -> !stg.tensor<[S/tp, D], bf16>
  %y = stg.contract %x, %w over [F] {placement = #dist.placement<[F/tp]>}
    : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  stg.output %y : !stg.tensor<[S/tp, D], bf16>
}

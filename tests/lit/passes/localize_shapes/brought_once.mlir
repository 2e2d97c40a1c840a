// Readers that need an operand alike share one change of placement.
// RUN: stagec-opt %s -p localize-shapes | filecheck %s

stg.program "M" () {
  %x = "test.op"() : () -> !stg.tensor<[S/tp, D], bf16>
  %v = stg.weight "v" : !stg.tensor<[D, F/tp], bf16>
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  // CHECK:      %[[WHOLE:[^ ]*]] = dist.reshard %x {{.*}} -> !stg.tensor<[S, D], bf16>
  // CHECK-NEXT: stg.contract %[[WHOLE]], %v
  // CHECK-NEXT: stg.contract %[[WHOLE]], %w
  %a = stg.contract %x, %v over [D] {placement = #dist.placement<[F/tp]>}
    : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
  %b = stg.contract %x, %w over [D] {placement = #dist.placement<[F/tp]>}
    : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
  stg.output %a, %b : !stg.tensor<[S, F/tp], bf16>, !stg.tensor<[S, F/tp], bf16>
}

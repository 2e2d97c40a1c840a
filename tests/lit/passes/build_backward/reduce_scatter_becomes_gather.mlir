// What was reduced to shards is gathered on the way back, once for all its readers.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[S, F/tp], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[F/tp, D], bf16>
  %p = stg.contract %x, %w over [F] : (!stg.tensor<[S, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[S, D], bf16, partial [tp]>
  %y = dist.reshard %p : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  %a = stg.unary "exp" %y : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  %b = stg.add %y, %a : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  %loss = stg.reduce "sum" %b over [S, D] : (!stg.tensor<[S/tp, D], bf16>) -> !stg.tensor<[], bf16, partial [tp]>
  // CHECK:      %[[SUM:[^ ]*]] = stg.add {{.*}}phase = "bwd"{{.*}} -> !stg.tensor<[S/tp, D], bf16>
  // CHECK-NEXT: %[[WHOLE:[^ ]*]] = dist.reshard %[[SUM]] {{.*}} : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
  // CHECK-NEXT: stg.contract %[[WHOLE]], %x over [S] {phase = "wgrad"
  // CHECK-NOT:  dist.reshard
  stg.output %loss : !stg.tensor<[], bf16, partial [tp]>
}

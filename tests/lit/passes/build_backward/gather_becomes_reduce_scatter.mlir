// The cotangent of a gathered value, partial over the axis, goes to the value's shards at once.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[S/tp, D], bf16>) {
  %n = stg.weight "n" : !stg.tensor<[D], bf16>
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  %h = stg.mul %x, %n : (!stg.tensor<[S/tp, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[S/tp, D], bf16>
  %g = dist.reshard %h : !stg.tensor<[S/tp, D], bf16> -> !stg.tensor<[S, D], bf16>
  %y = stg.contract %g, %w over [D] : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[S, F/tp], bf16>
  %loss = stg.reduce "sum" %y over [S, F] : (!stg.tensor<[S, F/tp], bf16>) -> !stg.tensor<[], bf16, partial [tp]>
  // CHECK:      %[[TERM:[^ ]*]] = stg.contract %{{.*}}, %w over [F] {{.*}} -> !stg.tensor<[S, D], bf16, partial [tp]>
  // CHECK-NEXT: dist.reshard %[[TERM]] {{.*}} : !stg.tensor<[S, D], bf16, partial [tp]> -> !stg.tensor<[S/tp, D], bf16>
  // CHECK:      stg.mul {{.*}} %x {phase = "wgrad"
  // CHECK-NEXT: stg.reduce "sum" {{.*}} -> !stg.tensor<[D], bf16, partial [tp]>
  stg.output %loss : !stg.tensor<[], bf16, partial [tp]>
}

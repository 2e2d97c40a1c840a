// A cotangent that is partial over an axis is summed where something the value depends on is split over it.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, F/tp], bf16>) {
  %v = stg.weight "v" : !stg.tensor<[F/tp, D], bf16>
  %w = stg.weight "w" : !stg.tensor<[D, G/tp], bf16>
  %p = stg.contract %x, %v over [F] : (!stg.tensor<[B, F/tp], bf16>, !stg.tensor<[F/tp, D], bf16>) -> !stg.tensor<[B, D], bf16, partial [tp]>
  %h = dist.reshard %p : !stg.tensor<[B, D], bf16, partial [tp]> -> !stg.tensor<[B, D], bf16>
  %e = stg.unary "exp" %h : (!stg.tensor<[B, D], bf16>) -> !stg.tensor<[B, D], bf16>
  %y = stg.contract %e, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, G/tp], bf16>) -> !stg.tensor<[B, G/tp], bf16>
  %loss = stg.reduce "sum" %y over [B, G] : (!stg.tensor<[B, G/tp], bf16>) -> !stg.tensor<[], bf16, partial [tp]>
  // CHECK:      %[[TERM:[^ ]*]] = stg.contract {{.*}}, %w over [G] {{.*}} -> !stg.tensor<[B, D], bf16, partial [tp]>
  // CHECK-NEXT: %[[DE:[^ ]*]] = dist.reshard %[[TERM]] {{.*}} -> !stg.tensor<[B, D], bf16>
  // CHECK:      stg.unary_grad "exp" %[[DE]]
  stg.output %loss : !stg.tensor<[], bf16, partial [tp]>
}

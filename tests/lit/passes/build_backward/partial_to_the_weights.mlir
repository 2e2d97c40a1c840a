// Nothing that a learned position depends on is split over data parallel ranks: its cotangent stays partial to the weight.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B/dp, S, D], bf16>, %i : !stg.tensor<[S], i32>) {
  %p = stg.weight "positions" : !stg.tensor<[P, D], bf16>
  %e = stg.embedding %i, %p : (!stg.tensor<[S], i32>, !stg.tensor<[P, D], bf16>) -> !stg.tensor<[S, D], bf16>
  %f = stg.unary "tanh" %e : (!stg.tensor<[S, D], bf16>) -> !stg.tensor<[S, D], bf16>
  %y = stg.add %x, %f : (!stg.tensor<[B/dp, S, D], bf16>, !stg.tensor<[S, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>
  %z = stg.unary "exp" %y : (!stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[B/dp, S, D], bf16>
  %loss = stg.reduce "sum" %z over [B, S, D] : (!stg.tensor<[B/dp, S, D], bf16>) -> !stg.tensor<[], bf16, partial [dp]>
  // CHECK:      %[[DF:[^ ]*]] = stg.reduce "sum" {{.*}} over [B] {{.*}} -> !stg.tensor<[S, D], bf16, partial [dp]>
  // CHECK-NEXT: %[[DE:[^ ]*]] = stg.unary_grad "tanh" %[[DF]], %f {{.*}} -> !stg.tensor<[S, D], bf16, partial [dp]>
  // CHECK-NEXT: stg.embedding_grad %i, %[[DE]] {{.*}} -> !stg.tensor<[P, D], bf16, partial [dp]>
  // CHECK-NOT:  dist.reshard
  stg.output %loss : !stg.tensor<[], bf16, partial [dp]>
}

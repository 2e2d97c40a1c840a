// What repeats carry is never partial, backward neither: a partial cotangent is summed before it enters.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D, F/tp], bf16>
  %ns = stg.weight "n" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %h = stg.repeat "L" carry(%c = %x : !stg.tensor<[B, D], bf16>) slice(%n = %ns : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
    %m = stg.mul %c, %n : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    stg.yield %m : !stg.tensor<[B, D], bf16>
  }
  %y = stg.contract %h, %w over [D] : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D, F/tp], bf16>) -> !stg.tensor<[B, F/tp], bf16>
  %loss = stg.reduce "sum" %y over [B, F] : (!stg.tensor<[B, F/tp], bf16>) -> !stg.tensor<[], bf16, partial [tp]>
  // CHECK: %[[TERM:[^ ]*]] = stg.contract {{.*}}, %w over [F] {{.*}} -> !stg.tensor<[B, D], bf16, partial [tp]>
  // CHECK: %[[DH:[^ ]*]] = dist.reshard %[[TERM]] {{.*}} -> !stg.tensor<[B, D], bf16>
  // CHECK: stg.repeat "L" reverse carry(%{{.*}} = %[[DH]] : !stg.tensor<[B, D], bf16>)
  stg.output %loss : !stg.tensor<[], bf16, partial [tp]>
}

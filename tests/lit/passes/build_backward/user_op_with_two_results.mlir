// The gradient of an op with several results is linear in all their cotangents together: none of them stays partial.
// RUN: stagec-opt %s -p build-backward | filecheck %s

stg.program "M" (%i : !stg.tensor<[B/dp], bf16>) {
  %w = stg.weight "w" : !stg.tensor<[D], bf16>
  %a, %b = stg.user "f" (%w) flops "D" bytes "D" backward_flops "2*D" backward_bytes "D"
    : (!stg.tensor<[D], bf16>) -> (!stg.tensor<[D], bf16>, !stg.tensor<[D], bf16>)
  %x = stg.mul %i, %a : (!stg.tensor<[B/dp], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B/dp, D], bf16>
  %s = stg.reduce "sum" %x over [B, D] : (!stg.tensor<[B/dp, D], bf16>) -> !stg.tensor<[], bf16, partial [dp]>
  %t = dist.reshard %s : !stg.tensor<[], bf16, partial [dp]> -> !stg.tensor<[], bf16>
  %u = stg.reduce "sum" %b over [D] : (!stg.tensor<[D], bf16>) -> !stg.tensor<[], bf16>
  %loss = stg.add %t, %u : (!stg.tensor<[], bf16>, !stg.tensor<[], bf16>) -> !stg.tensor<[], bf16>
  // CHECK: %[[DB:[^ ]*]] = stg.broadcast {{.*}} -> !stg.tensor<[D], bf16>
  // CHECK: %[[TERM:[^ ]*]] = stg.reduce "sum" {{.*}} over [B] {{.*}} -> !stg.tensor<[D], bf16, partial [dp]>
  // CHECK: %[[DA:[^ ]*]] = dist.reshard %[[TERM]] {{.*}} -> !stg.tensor<[D], bf16>
  // CHECK: stg.user_grad "f"(%[[DA]], %[[DB]], %w) flops "2*D" bytes "D"
  stg.output %loss : !stg.tensor<[], bf16>
}

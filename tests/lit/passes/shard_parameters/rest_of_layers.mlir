// What layers have beside named units is of the root unit: gathered with it, and kept for the backward pass as it is.
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" gather="bf16" units="Experts"}' | filecheck %s
// RUN: stagec-opt %s -p 'shard-parameters{level=3 axes="dp" gather="bf16" units="Experts" reshard_root=true}' | filecheck %s --check-prefix AGAIN

// AGAIN:     dist.unshard(%w, %norm){{.*}}phase = "fwd"
// AGAIN:     dist.unshard(%w, %norm){{.*}}phase = "bwd"

stg.program "M" (%x : !stg.tensor<[B, D], bf16>) {
  %w = stg.weight "Block.w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %e = stg.weight "Block.Experts.w" : !stg.stack<"L" x !stg.tensor<[D], bf16>>
  %norm = stg.weight "norm" : !stg.tensor<[D], bf16>
  stg.accumulate over "mb" {
    // CHECK:      stg.accumulate
    // CHECK-NEXT: %{{.*}} = dist.unshard(%w, %norm){{.*}}phase = "fwd"
    // CHECK:      stg.repeat "L" carry
    // CHECK-NEXT: %{{.*}} = dist.unshard(%{{[^ ,]*}}) {{.*}}phase = "fwd"
    %y = stg.repeat "L" carry(%h = %x : !stg.tensor<[B, D], bf16>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>, %u = %e : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) {
      %n = stg.mul %h, %u : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      %m = stg.mul %n, %v : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %m : !stg.tensor<[B, D], bf16>
    }
    %z = stg.mul %y, %norm : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    // CHECK-NOT:  dist.unshard(%w, %norm)
    // CHECK:      stg.repeat "L" reverse
    // CHECK-NEXT: %{{.*}} = dist.unshard(%{{[^ ,]*}}) {{.*}}phase = "bwd"
    %dz = stg.mul %z, %norm {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
    %dx = stg.repeat "L" reverse carry(%dh = %dz : !stg.tensor<[B, D], bf16>) slice(%v = %w : !stg.stack<"L" x !stg.tensor<[D], bf16>>, %u = %e : !stg.stack<"L" x !stg.tensor<[D], bf16>>) -> (!stg.tensor<[B, D], bf16>) attributes {phase = "bwd"} {
      %n = stg.mul %dh, %u {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      %m = stg.mul %n, %v {phase = "bwd"} : (!stg.tensor<[B, D], bf16>, !stg.tensor<[D], bf16>) -> !stg.tensor<[B, D], bf16>
      stg.yield %m : !stg.tensor<[B, D], bf16>
    }
    stg.yield
  }
  stg.output
}

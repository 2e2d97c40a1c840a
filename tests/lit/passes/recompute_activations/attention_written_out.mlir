// The core of attention: scores, mask, softmax and what prepares the operands of its products. Its result is kept.
// RUN: stagec-opt %s -p 'recompute-activations{what="attention" modules="A"}' | filecheck %s

stg.program "M" (%x : !stg.tensor<[S, D], bf16>, %d : !stg.tensor<[S, K, E], bf16>,
    %dp : !stg.tensor<[S, H, T], bf16>) {
  %wq = stg.weight "wq" : !stg.tensor<[D, H, E], bf16>
  %wo = stg.weight "wo" : !stg.tensor<[H, E, D], bf16>
  %q = stg.contract %x, %wq over [D] {scope = "A"}
    : (!stg.tensor<[S, D], bf16>, !stg.tensor<[D, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  %k = stg.repeat_heads %d "K" to "H" {scope = "A"}
    : (!stg.tensor<[S, K, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  %t = stg.rename %k [S] to [T] {scope = "A"} : (!stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[T, H, E], bf16>
  %s = stg.contract %q, %t over [E] {scope = "A"}
    : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[T, H, E], bf16>) -> !stg.tensor<[S, H, T], bf16>
  %m = stg.causal_mask %s query "S" key "T" {scope = "A"}
    : (!stg.tensor<[S, H, T], bf16>) -> !stg.tensor<[S, H, T], bf16>
  %p = stg.softmax %m over [T] {scope = "A"} : (!stg.tensor<[S, H, T], bf16>) -> !stg.tensor<[S, H, T], bf16>
  %o = stg.contract %p, %t over [T] {scope = "A"}
    : (!stg.tensor<[S, H, T], bf16>, !stg.tensor<[T, H, E], bf16>) -> !stg.tensor<[S, H, E], bf16>
  // CHECK: %[[Y:[^ ]*]] = stg.contract %o, %wo
  %y = stg.contract %o, %wo over [H, E] {scope = "A"}
    : (!stg.tensor<[S, H, E], bf16>, !stg.tensor<[H, E, D], bf16>) -> !stg.tensor<[S, D], bf16>

  // CHECK-NEXT: stg.contract %[[Y]], %o over [S] {phase = "wgrad"}
  %dwo = stg.contract %y, %o over [S] {phase = "wgrad"}
    : (!stg.tensor<[S, D], bf16>, !stg.tensor<[S, H, E], bf16>) -> !stg.tensor<[D, H, E], bf16>
  // CHECK-NEXT: %[[K:[^ ]*]] = stg.repeat_heads %d {{.*}}"recompute"
  // CHECK-NEXT: %[[T:[^ ]*]] = stg.rename %[[K]] {{.*}}"recompute"
  // CHECK-NEXT: %[[S:[^ ]*]] = stg.contract %q, %[[T]] {{.*}}"recompute"
  // CHECK-NEXT: %[[M:[^ ]*]] = stg.causal_mask %[[S]] {{.*}}"recompute"
  // CHECK-NEXT: %[[P:[^ ]*]] = stg.softmax %[[M]] {{.*}}"recompute"
  // CHECK-NEXT: stg.softmax_grad %{{.*}}, %[[P]]
  // CHECK-NOT:  recompute
  %ds = stg.softmax_grad %dp, %p over [T] {phase = "bwd"}
    : (!stg.tensor<[S, H, T], bf16>, !stg.tensor<[S, H, T], bf16>) -> !stg.tensor<[S, H, T], bf16>
  stg.output
}
